"""The training loop: what happens between two updates. What happens in one is `flaxnmt.training.step`."""

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from experiments.corpora import Corpora
from experiments.evaluate import Evaluator
from flaxnmt.config import Config
from flaxnmt.errors import RunError
from flaxnmt.models.flops import forward_flops
from flaxnmt.run import PARAMETERS
from flaxnmt.sharding import owned_rows, put_batch
from flaxnmt.training.checkpoints import Checkpoints
from flaxnmt.training.export import write_parameters
from flaxnmt.training.meters import CompilationCounter, Stopwatch, rates
from flaxnmt.training.metrics import MetricsWriter
from flaxnmt.training.preemption import PREEMPTED, Preemption
from flaxnmt.training.progress import Progress
from flaxnmt.training.state import TrainState
from flaxnmt.training.step import CompiledStep
from flaxnmt.typing import Params

log = logging.getLogger(__name__)

# Read back this many updates late, a number is there already and nobody waits for it.
LAG = 2


@dataclass
class History:
    """What a run remembers beside its state; saved with every checkpoint."""

    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0

    def note(self, score: float, step: int, larger_is_better: bool) -> bool:
        """Takes in a development score; whether it is the best so far."""
        better = self.best is None or (score > self.best if larger_is_better else score < self.best)
        if better:
            self.best, self.best_step, self.evaluations_since_best = score, step, 0
        else:
            self.evaluations_since_best += 1
        return better


@dataclass
class Interval:
    """Updates since the last row of metrics; device numbers are left where they are."""

    metrics: list[dict] = field(default_factory=list)
    tokens: int = 0
    slots: int = 0
    flops: int = 0

    def add(self, metrics: dict, batches: list[dict]) -> None:
        self.metrics.append(metrics)
        self.tokens += sum(int(np.count_nonzero(ids)) for batch in batches for ids in batch.values())
        self.slots += sum(ids.size for batch in batches for ids in batch.values())


class Loop:
    """One run from wherever it stands to its end.

    Attributes:
      config: the resolved configuration.
      directory: the run directory.
      corpora: see `experiments.corpora`.
      step: the compiled update.
      evaluator: development and test scores.
      checkpoints: where to continue from.
      mesh: devices.
      peak: FLOP/s of the matrix product of all devices.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        corpora: Corpora,
        step: CompiledStep,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        mesh: Mesh,
        peak: float,
    ):
        self.config, self.directory, self.corpora = config, directory, corpora
        self.step, self.evaluator, self.checkpoints = step, evaluator, checkpoints
        self.mesh, self.peak = mesh, peak
        self.larger_is_better = config.training.metric != "loss"
        self._whole = jax.jit(lambda tree: tree, out_shardings=evaluator.whole)
        self.scored: tuple[int | None, float | None] = (None, None)

    def run(self, state: TrainState, history: History) -> int:
        """Trains until a limit is reached or a save is asked for; the exit code of the process."""
        training, start = self.config.training, int(state.step)
        self.started = time.monotonic() - history.seconds
        batches = self._batches(start * training.accumulate)
        watch, interval = Stopwatch(), Interval()
        late: deque = deque()
        total, budget = self._last_step(), training.max_minutes
        left = None if budget is None else max(budget * 60 - history.seconds, 0.0)
        with (
            CompilationCounter() as self.compilations,
            Preemption() as preemption,
            MetricsWriter(self.directory, training.tensorboard, resume_step=start) as self.metrics,
            Progress(total, start, left, show=jax.process_index() == 0) as self.progress,
        ):
            self.metrics.event(start, "started", seconds=history.seconds)
            step, preempted = start, False
            while not self._finished(step, total, history):
                local = list(itertools.islice(batches, training.accumulate))
                state, metrics = self.step(state, [put_batch(batch, self.mesh) for batch in local])
                step += 1
                interval.add(metrics, local)
                interval.flops += 3 * sum(self._flops(batch) for batch in local)
                late.append(metrics["bad_in_a_row"])
                if len(late) > LAG:
                    self._stop_if_diverged(step - LAG, int(late.popleft()))
                if step % training.log_every == 0 or step == total:
                    self._show(self.metrics.write_later(step, *self._row(interval, watch.lap(), history)))
                    interval = Interval()
                history.seconds = time.monotonic() - self.started
                evaluate = step % training.evaluate_every == 0
                if evaluate:
                    with watch.pause():
                        self._evaluate(state, step, history)
                if evaluate or (training.checkpoint_every and step % training.checkpoint_every == 0):
                    with watch.pause():
                        self._save(state, step, history)
                if evaluate:
                    self._warm(step)
                if preemption.requested(step):
                    preempted = True
                    break
            for offset, value in enumerate(late):
                self._stop_if_diverged(step - len(late) + offset + 1, int(value))
            if not preempted and (history.best is None or step % training.evaluate_every):
                self._evaluate(state, step, history)
            history.seconds = time.monotonic() - self.started
            self._save(state, step, history, wait=True)
            if preempted:
                self.metrics.event(step, "preempted")
                self.progress.say(f"asked to stop: saved at step {step}; the same command continues")
                return PREEMPTED
            self._finish(state, step, history)
        return 0

    def _batches(self, start: int) -> Iterator[dict]:
        return self.corpora.train.iterate(start, rows=lambda rows: owned_rows(rows, self.mesh))

    def _last_step(self) -> int | None:
        training = self.config.training
        by_epochs = None
        if training.max_epochs is not None:
            by_epochs = -(-training.max_epochs * len(self.corpora.train) // training.accumulate)
        limits = [limit for limit in (training.max_steps, by_epochs) if limit is not None]
        return min(limits, default=None)

    def _finished(self, step: int, total: int | None, history: History) -> bool:
        training = self.config.training
        if total is not None and step >= total:
            return True
        if training.patience is not None and history.evaluations_since_best >= training.patience:
            return True
        if training.max_minutes is None:
            return False
        over = time.monotonic() - self.started >= training.max_minutes * 60
        if jax.process_count() > 1:
            # Clocks differ, and all processes must leave after the same update.
            over = bool(multihost_utils.broadcast_one_to_all(np.asarray(over)))
        return over

    def _flops(self, batch: dict) -> int:
        rows, target = batch["target"].shape
        rows *= jax.process_count()
        vocab = self.corpora.vocabularies.target.vocab_size
        return forward_flops(self.config.model, vocab, rows, batch["source"].shape[1], target)

    def _row(self, interval: Interval, seconds: float, history: History):
        """Values and the function that turns them, once they are there, into a row of metrics."""
        compilations = {
            "compilations": self.compilations.total,
            "compilations_after_warmup": len(self.compilations.late),
        }

        def derive(values: dict) -> dict:
            steps = values["metrics"]
            tokens = sum(step["tokens"] for step in steps)
            means = {
                name: sum(step[name] * step["tokens"] for step in steps) / max(tokens, 1)
                for name in steps[0] if name not in ("tokens", "learning_rate", "bad_steps", "bad_in_a_row")
            }  # fmt: skip
            last = {name: steps[-1][name] for name in ("learning_rate", "bad_steps")}
            speed = rates(seconds, len(steps), tokens, interval.tokens, interval.slots, interval.flops, self.peak)
            return means | last | speed | compilations | {"minutes": history.seconds / 60}

        return {"metrics": interval.metrics}, "train", derive

    def _show(self, rows: list[dict]) -> None:
        for row in rows:
            if row["kind"] == "train":
                self.progress.update(row["step"], row["loss"], row["target_tokens_per_second"])

    def _stop_if_diverged(self, step: int, in_a_row: int) -> None:
        if in_a_row >= self.config.training.max_bad_steps:
            raise RunError(
                f"the loss was not finite in {in_a_row} updates in a row, up to step {step}, and none of them was "
                "applied: lower --optimizer.learning-rate or --optimizer.factor, or set --optimizer.clip-norm 1.0"
            )

    def _evaluate(self, state: TrainState, step: int, history: History) -> None:
        began = time.monotonic()
        row, outputs = self.evaluator(self._evaluated(state))
        row["seconds"] = time.monotonic() - began
        metric = row[self.config.training.metric]
        score = metric["score"] if isinstance(metric, dict) else metric
        best = history.note(score, step, self.larger_is_better)
        self.scored = (step, score)
        self._show(self.metrics.flush())
        self.metrics.write(step, "dev", row)
        if jax.process_index() == 0 and outputs:
            (self.directory / "dev.txt").write_text("".join(f"{line}\n" for line in outputs), encoding="utf-8")
        shown = [f"perplexity {row['perplexity']:.3f}"]
        shown += [f"{name} {row[name]['score']:.2f}" for name in ("bleu", "chrf") if name in row]
        self.progress.say(f"step {step} · dev {' · '.join(shown)}{' · best so far' if best else ''}")
        if best and self.config.training.average == "none":
            self._export(self._evaluated(state))

    def _warm(self, step: int) -> None:
        # Every training shape occurs within an epoch, and translation has met its shapes by then too.
        if step * self.config.training.accumulate >= len(self.corpora.train):
            self.compilations.warm()

    def _evaluated(self, state: TrainState) -> Params:
        return state.params if state.ema is None else state.ema

    def _save(self, state: TrainState, step: int, history: History, wait: bool = False) -> None:
        rest = {"opt_state": state.opt_state, "ema": state.ema, "bad": state.bad, "step": state.step}
        progress = vars(history) | {"step": step}
        scored, score = self.scored
        self.checkpoints.save(step, state.params, rest, progress, metric=score if scored == step else None, wait=wait)

    def _finish(self, state: TrainState, step: int, history: History) -> None:
        """Averages, exports, scores the test set, and writes the last rows."""
        training = self.config.training
        params = None
        if training.average != "none" and state.ema is None:
            last = training.average == "last"
            steps = (self.checkpoints.last_steps if last else self.checkpoints.best_steps)(training.average_count)
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params)
            params = self.checkpoints.average(steps, abstract)
            self._export(params)
            self.metrics.write(step, "dev", self.evaluator(params)[0] | {"set": f"mean of steps {sorted(steps)}"})
        if self.corpora.test is not None:
            best = params if params is not None else self._exported(state)
            scores, outputs = self.evaluator.scores(best, self.corpora.test)
            self.metrics.write(step, "test", scores)
            if jax.process_index() == 0:
                (self.directory / "test.txt").write_text("".join(f"{line}\n" for line in outputs), encoding="utf-8")
            self.progress.say(f"test BLEU {scores['bleu']['score']:.2f} ({scores['bleu']['signature']})")
        self.metrics.event(step, "finished", minutes=history.seconds / 60, best_step=history.best_step)

    def _export(self, params: Params) -> None:
        whole = self._whole(params)
        if jax.process_index() == 0:
            write_parameters(self.directory / PARAMETERS, whole)

    def _exported(self, state: TrainState) -> Params:
        """The parameters that were exported when the best score was seen, laid out as the state's."""
        from flaxnmt.training.export import read_parameters

        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("parameters are exported")
        found = read_parameters(self.directory / PARAMETERS)
        return jax.tree.map(lambda old, new: jax.device_put(jnp.asarray(new), old.sharding), state.params, found)
