"""The training loop: what happens between two updates. What happens in one is `flaxnmt.training.step`."""

import itertools
import logging
from collections import deque
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from experiments.bucket import Shared
from experiments.history import History, brief
from experiments.interval import Interval
from experiments.tasks.task import Evaluator, Task
from flaxnmt.config import Config
from flaxnmt.errors import RunError
from flaxnmt.run_directory import PARAMETERS
from flaxnmt.sharding import owned_rows, put_batch
from flaxnmt.training.checkpoints import Checkpoints
from flaxnmt.training.export import read_parameters, write_parameters
from flaxnmt.training.meters import CompilationCounter, peak_memory
from flaxnmt.training.metrics import MetricsWriter
from flaxnmt.training.phases import Phases, goodput
from flaxnmt.training.preemption import PREEMPTED, Preemption
from flaxnmt.training.progress import Progress
from flaxnmt.training.state import TrainState
from flaxnmt.training.step import CompiledStep
from flaxnmt.typing import Params

log = logging.getLogger(__name__)

# Read back this many updates late, a number is there already and nobody waits for it.
LAG = 2


class Loop:
    """One run from wherever it stands to its end.

    Attributes:
      config: the resolved configuration.
      shared: the run directory, which all processes share.
      task: what is learned.
      step: the compiled update.
      evaluator: development and test scores.
      checkpoints: where to continue from.
      mesh: devices.
      peak: FLOP/s of the matrix product of all devices.
      phases: where the time of the run goes.
    """

    def __init__(
        self,
        config: Config,
        shared: Shared,
        task: Task,
        step: CompiledStep,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        mesh: Mesh,
        peak: float,
        phases: Phases,
    ):
        self.config, self.shared, self.task = config, shared, task
        self.directory = shared.local
        self.step, self.evaluator, self.checkpoints = step, evaluator, checkpoints
        self.mesh, self.peak, self.phases = mesh, peak, phases
        self.larger_is_better = config.training.metric != "loss"
        self._whole = jax.jit(lambda tree: tree, out_shardings=evaluator.whole)
        self.scored: tuple[int | None, float | None] = (None, None)
        self.total = self._last_step()

    def run(self, state: TrainState, history: History) -> int:
        """Trains until a limit is reached or a save is asked for; the exit code of the process."""
        start = int(state.step)
        seconds, budget = self.phases.total(), self.config.training.max_minutes
        left = None if budget is None else max(budget * 60 - seconds, 0.0)
        again = ("average", "test") if history.evaluated == start else ("dev", "average", "test")
        with (
            MetricsWriter(
                self.directory, self.config.training.tensorboard, resume_step=start, again=again
            ) as self.metrics,
            Progress(self.total, start, left, show=jax.process_index() == 0) as self.progress,
        ):
            self.metrics.event(start, "started", seconds=seconds)
            with (
                CompilationCounter() as self.compilations,
                Preemption() as preemption,
                self.phases.within("step"),
            ):
                state, step, preempted = self._train(state, start, history, preemption)
            if preempted:
                self._save(state, step, history, wait=True, passing=True)
                self.metrics.event(step, "preempted")
                self.progress.say(f"asked to stop: saved at step {step}; the same command continues")
                return PREEMPTED
            with self.phases.within("evaluate"):
                if history.evaluated != step:
                    self._evaluate(state, step, history)
                self._save(state, step, history, wait=True)
                self._finish(state, step, history)
        return 0

    def _train(
        self, state: TrainState, start: int, history: History, preemption: Preemption
    ) -> tuple[TrainState, int, bool]:
        """State and step where the updates end, and whether that is because a save is asked for."""
        training, step = self.config.training, start
        batches = self._batches(start * training.accumulate)
        interval = Interval()
        self.phases.lap()
        late: deque = deque()
        preempted, done = False, self.is_over(step, history)
        if step and self._due(step) and history.evaluated != step and not done:
            # It was asked to stop before this evaluation, or ended in it.
            with self.phases.within("evaluate"):
                self._evaluate(state, step, history)
                self._save(state, step, history)
                done = self.is_over(step, history)
        while not (done or preempted):
            with self.phases.within("data"):
                local = list(itertools.islice(batches, training.accumulate))
                placed = [put_batch(batch, self.mesh) for batch in local]
            state, metrics = self.step(state, placed)
            step += 1
            interval.add(metrics, local, 3 * sum(map(self._flops, local, placed)))
            late.append(metrics["bad_in_a_row"])
            if len(late) > LAG:
                self._stop_if_diverged(step - LAG, int(late.popleft()))
            done = self.is_over(step, history)
            preempted = preemption.requested(step)
            # Who asks to stop may not wait for an evaluation; the run begins with it when it goes on.
            evaluate = (self._due(step) or done) and not preempted
            save = evaluate or self._saves(step)
            if save or preempted:
                # A checkpoint waits for the updates before it, whose time is theirs.
                jax.block_until_ready(metrics)
            if step % training.log_every == 0 or save or preempted:
                # A checkpoint ends a row, so that no row holds updates of two processes.
                self._show(
                    self.metrics.write_later(step, *interval.row(self.phases.lap(), self.peak, self._known()))
                )
                interval = Interval()
            with self.phases.within("evaluate"):
                if save:
                    # First, since a machine that is taken away does not wait for an evaluation.
                    self._save(state, step, history)
                if evaluate:
                    self._evaluate(state, step, history)
                    done = done or self.is_over(step, history)
                    self._save(state, step, history)
                    self._warm(state, start, step)
        for offset, value in enumerate(late):
            self._stop_if_diverged(step - len(late) + offset + 1, int(value))
        # Who was asked in the last evaluation leaves too: what is left to do at the end may take minutes.
        return state, step, preempted or preemption.asked

    def _batches(self, start: int) -> Iterator[dict]:
        return self.task.train.iterate(start, rows=lambda rows: owned_rows(rows, self.mesh))

    def _last_step(self) -> int | None:
        training = self.config.training
        by_epochs = None
        if training.max_epochs is not None:
            by_epochs = -(-training.max_epochs * len(self.task.train) // training.accumulate)
        limits = [limit for limit in (training.max_steps, by_epochs) if limit is not None]
        return min(limits, default=None)

    def _due(self, step: int) -> bool:
        return step % self.config.training.evaluate_every == 0

    def _saves(self, step: int) -> bool:
        every = self.config.training.checkpoint_every
        return self._due(step) or (every is not None and step % every == 0)

    def is_over(self, step: int, history: History) -> bool:
        """Whether there is no update to make any more."""
        training = self.config.training
        if self.total is not None and step >= self.total:
            return True
        if training.patience is not None and history.evaluations_since_best >= training.patience:
            return True
        if training.max_minutes is None:
            return False
        if jax.process_count() > 1 and step % training.log_every:
            return False
        over = self.phases.total() >= training.max_minutes * 60
        if jax.process_count() > 1:
            # Clocks differ, and all processes must leave after the same update; asked seldom, since it waits.
            over = bool(multihost_utils.broadcast_one_to_all(np.asarray(over)))
        return over

    def _flops(self, local: dict, placed: dict) -> int:
        """Of the rows of all processes, of which some may be those of this one."""
        here, all_rows = (len(next(iter(batch.values()))) for batch in (local, placed))
        return self.task.flops(local) * all_rows // here

    def _known(self) -> dict:
        """What a row says beside the device's numbers."""
        return {
            "compilations": self.compilations.total,
            "compilations_after_warmup": len(self.compilations.late),
            "minutes": self.phases.total() / 60,
            "phases": (phases := self._phases()),
            "goodput": goodput(phases),
        }

    def _phases(self) -> dict[str, float]:
        return {phase: round(seconds, 3) for phase, seconds in self.phases.seconds().items()}

    def _show(self, rows: list[dict]) -> None:
        for row in rows:
            if row["kind"] == "train":
                self.progress.update(row["step"], row["loss"], row["target_tokens_per_second"])

    def _stop_if_diverged(self, step: int, in_a_row: int) -> None:
        if in_a_row >= self.config.training.max_bad_steps:
            self.metrics.event(step, "diverged")
            raise RunError(
                f"the loss was not finite in {in_a_row} updates in a row, up to step {step}, and none of them was "
                "applied: lower --optimizer.learning-rate or --optimizer.factor, or set --optimizer.clip-norm 1.0"
            )

    def _evaluate(self, state: TrainState, step: int, history: History) -> None:
        before = self.phases.total()
        row, outputs = self.evaluator(self._evaluated(state))
        row["seconds"] = self.phases.total() - before
        metric = row[self.config.training.metric]
        score = metric["score"] if isinstance(metric, dict) else metric
        best = history.note(score, row["loss"], step, self.larger_is_better)
        self.scored = (step, score)
        self._show(self.metrics.flush())
        self.metrics.write(step, "dev", row)
        if jax.process_index() == 0 and outputs:
            (self.directory / "dev.txt").write_text(
                "".join(f"{line}\n" for line in outputs), encoding="utf-8"
            )
        self.progress.say(f"step {step} · dev {brief(row)}{' · best so far' if best else ''}")
        if best:
            self._export(self._evaluated(state))

    def _warm(self, state: TrainState, start: int, step: int) -> None:
        # Every training shape occurs in an epoch from its beginning on; evaluations and saves have met theirs by then.
        accumulate, epoch = self.config.training.accumulate, len(self.task.train)
        first_whole = -(-start * accumulate // epoch)
        if step * accumulate >= (first_whole + 1) * epoch:
            jax.block_until_ready(self._whole(self._evaluated(state)))
            self.compilations.warm()

    def _evaluated(self, state: TrainState) -> Params:
        return state.params if state.ema is None else state.ema

    def _save(
        self, state: TrainState, step: int, history: History, wait: bool = False, passing: bool = False
    ) -> None:
        rest = {"opt_state": state.opt_state, "ema": state.ema, "bad": state.bad, "step": state.step}
        # Before the checkpoint is there, so that a run that is killed and continues from it misses no row.
        self._show(self.metrics.flush())
        history.phases = self.phases.seconds()
        progress = vars(history) | {"step": step}
        scored, score = self.scored
        metric = score if scored == step else None
        with self.phases.within("save"):
            # Before the checkpoint is whole, so that what it belongs to is there; it is written meanwhile.
            self.shared.save()
            self.checkpoints.save(step, state.params, rest, progress, metric, wait, passing)

    def _finish(self, state: TrainState, step: int, history: History) -> None:
        """Averages, exports, scores the test set, and writes the last rows."""
        training = self.config.training
        params = None
        if training.average != "none" and state.ema is None:
            last = training.average == "last"
            steps = (self.checkpoints.last_steps if last else self.checkpoints.best_steps)(
                training.average_count
            )
            abstract = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params
            )
            params, steps = self.checkpoints.average(steps, abstract)
            self._export(params)
            row = self.evaluator(params)[0]
            self.metrics.write(
                step, "average", row | {"set": f"dev, mean of steps {' '.join(map(str, sorted(steps)))}"}
            )
            self.progress.say(f"mean of {len(steps)} checkpoints · dev {brief(row)}")
        if self.config.data.test:
            scores, outputs = self.evaluator.test(self._exported(state) if params is None else params)
            self.metrics.write(step, "test", scores)
            if jax.process_index() == 0:
                (self.directory / "test.txt").write_text(
                    "".join(f"{line}\n" for line in outputs), encoding="utf-8"
                )
            self.progress.say(f"test {brief(scores, signatures=True)}")
        minutes, spent = self.phases.total() / 60, self._phases()
        known = {
            "minutes": minutes,
            "goodput": goodput(spent),
            "phases": spent,
            "best_step": history.best_step,
        }
        self.metrics.event(step, "finished", **known, peak_memory=peak_memory())
        self.progress.say(
            f"finished: {step} updates, {minutes:.1f} minutes ({goodput(spent):.0%} of them in updates), "
            f"best {history.describe(training.metric)}"
        )

    def _export(self, params: Params) -> None:
        whole = self._whole(params)
        if jax.process_index() == 0:
            write_parameters(self.directory / PARAMETERS, whole)
            self.shared.save()

    def _exported(self, state: TrainState) -> Params:
        """The parameters that were exported when the best score was seen, laid out as the state's."""
        if jax.process_count() > 1:
            self.shared.save(must=True)
            multihost_utils.sync_global_devices("parameters are exported")
            self.shared.fetch(PARAMETERS)
        found = read_parameters(self.directory / PARAMETERS)
        return jax.tree.map(
            lambda old, new: jax.device_put(new.astype(old.dtype), old.sharding), state.params, found
        )
