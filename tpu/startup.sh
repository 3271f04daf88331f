#!/usr/bin/env bash
# Runs a training on one machine of a TPU slice: the startup script of every machine, at every start.
#
# What to run is in the instance's metadata, and is data: names are compared, words are handed on one by one, nothing
# of it is evaluated. How the training ended is written to the bucket. A machine that starts again runs the training
# again, unless it had ended otherwise than by a save.
#
#   startup.sh                  as the machine starts
#   startup.sh again WORD ...   with another command, in the background, whatever happened before
set -euo pipefail

home=${FLAXNMT_HOME:-/var/lib/flaxnmt}
# Startup scripts run without one, and docker and gcloud keep their settings there.
export HOME=${HOME:-/root}
mkdir -p "$home"

if [[ ${1:-} == again ]]; then
    shift
    printf '%s\n' "$@" > "$home/given"
    rm -f "$home/code"
    exec < /dev/null >> "$home/startup.log" 2>&1
fi

# One at a time. A training that runs is not started a second time.
exec 9> "$home/lock"
if ! flock --nonblock 9; then
    echo "flaxnmt: the training runs already"
    exit 0
fi

metadata() {
    curl --fail --silent --show-error --connect-timeout 5 --max-time 30 --retry 10 --retry-delay 3 \
        --header 'Metadata-Flavor: Google' \
        "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

if [[ $0 != "$home/startup.sh" ]]; then
    install --mode=755 "$0" "$home/startup.sh"
fi
name=$(metadata flaxnmt-name)
image=$(metadata flaxnmt-image)
state=$(metadata flaxnmt-state)
metadata flaxnmt-command > "$home/command"
(umask 077 && metadata flaxnmt-environment > "$home/environment")
if [[ -s $home/given ]]; then
    cp "$home/given" "$home/command"
fi
mapfile -t command < "$home/command"

# Its number within the slice, and that of the slice where there are several.
worker=$(metadata agent-worker-number)
slice=$(metadata tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *'\{0,1\}\([0-9]*\).*/\1/p")
me=${slice:-0}-$worker

report() {
    local attempt
    for attempt in 1 2 3 4 5; do
        if printf '%s %s %s\n' "$name" "$me" "$1" | gcloud storage cp --quiet - "$state/exit/$me"; then
            return 0
        fi
        echo "flaxnmt: the bucket could not be written to, attempt $attempt"
        sleep "${FLAXNMT_PAUSE:-20}"
    done
    return 1
}

if [[ -s $home/code && $(< "$home/code") != 42 ]]; then
    echo "flaxnmt: the training ended with exit code $(< "$home/code") and is not started again"
    report "$(< "$home/code")"
    exit 0
fi

# Whoever watches must hear of it too when there never was a training.
trap 'report 1' ERR
report running
gcloud auth configure-docker "${image%%/*}" --quiet
docker rm --force flaxnmt > /dev/null 2>&1 || true
# Under the machine's own network JAX finds the other machines; the time to stop is that of a step and a save.
code=0
docker run --rm --name flaxnmt --init --privileged --network=host --shm-size=16g --stop-timeout=300 \
    --env-file "$home/environment" "$image" "${command[@]}" < /dev/null 2>&1 9>&- |
    tee -a "$home/log" || code=${PIPESTATUS[0]}
trap - ERR
printf '%s\n' "$code" > "$home/code"
gcloud storage cp --quiet "$home/log" "$state/log/$me" || true
report "$code"
