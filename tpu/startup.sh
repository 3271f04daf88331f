#!/usr/bin/env bash
# Runs a training on one machine of a TPU slice: the startup script of every machine, at every start.
#
# What to run is in the instance's metadata, and is data: names are compared, words are handed on one by one, nothing
# of it is evaluated. How the training ended, and when, is written to the bucket. A machine that starts again runs the
# training again, unless it had ended otherwise than by a save.
#
#   startup.sh                  as the machine starts
#   startup.sh again WORD ...   with another command, in the background, whatever happened before
set -euo pipefail

home=${FLAXNMT_HOME:-/var/lib/flaxnmt}
# Startup scripts run without one, and docker and gcloud keep their settings there.
export HOME=${HOME:-/root}
mkdir -p "$home"

given=()
if [[ ${1:-} == again ]]; then
    shift
    given=("$@")
    exec < /dev/null >> "$home/startup.log" 2>&1
fi

metadata() {
    curl --fail --silent --show-error --connect-timeout 5 --max-time 30 --retry 10 --retry-delay 3 \
        --header 'Metadata-Flavor: Google' \
        "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# One at a time, and before anything is changed.
exec 9> "$home/lock"
busy=
flock --nonblock 9 || busy=yes

name=$(metadata flaxnmt-name)
image=$(metadata flaxnmt-image)
state=$(metadata flaxnmt-state)

# Its number within the slice, and that of the slice where there are several.
worker=$(metadata agent-worker-number)
slice=$(metadata tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *'\{0,1\}\([0-9]*\).*/\1/p")
me=${slice:-0}-$worker

report() {
    local attempt
    for attempt in 1 2 3 4 5; do
        if printf '%s %s %s %s\n' "$name" "$me" "$1" "$(date +%s)" | gcloud storage cp --quiet - "$state/exit/$me"; then
            return 0
        fi
        echo "flaxnmt: the bucket could not be written to, attempt $attempt"
        sleep "${FLAXNMT_PAUSE:-20}"
    done
    return 1
}

if [[ -n $busy ]]; then
    # Whoever asked for another start has removed from the bucket that it runs.
    echo "flaxnmt: the training runs already"
    report running
    exit 0
fi

if [[ $0 != "$home/startup.sh" ]]; then
    install --mode=755 "$0" "$home/startup.sh"
fi
if ((${#given[@]})); then
    printf '%s\n' "${given[@]}" > "$home/given"
    rm -f "$home/code"
fi
metadata flaxnmt-command > "$home/command"
(umask 077 && metadata flaxnmt-environment > "$home/environment")
if [[ -s $home/given ]]; then
    cp "$home/given" "$home/command"
fi
mapfile -t command < "$home/command"

if [[ -s $home/code && $(< "$home/code") != 42 ]]; then
    echo "flaxnmt: the training ended with exit code $(< "$home/code") and is not started again"
    report "$(< "$home/code")"
    exit 0
fi

# A registry may not answer for a while, and an image of one version that is there is the right one.
fetch() {
    local attempt
    for attempt in 1 2 3 4 5; do
        if docker image inspect "$image" > /dev/null 2>&1; then
            return 0
        elif docker pull --quiet "$image" < /dev/null 2>&1 > /dev/null 9>&-; then
            return 0
        fi
        echo "flaxnmt: the image could not be fetched, attempt $attempt"
        sleep "${FLAXNMT_PAUSE:-20}"
    done
    return 125
}

# Under the machine's own network JAX finds the other machines; the time to stop is that of a step and a save.
train() {
    docker run --rm --name flaxnmt --init --privileged --network=host --shm-size=16g --stop-timeout=300 \
        --env-file "$home/environment" "$image" "${command[@]}" < /dev/null 2>&1 9>&-
}

# Whoever watches must hear of it too when there never was a training.
trap 'report 1' ERR
report running
gcloud auth configure-docker "${image%%/*}" --quiet
docker rm --force flaxnmt > /dev/null 2>&1 || true
code=0
{ fetch && train; } | tee -a "$home/log" || code=${PIPESTATUS[0]}
trap - ERR
printf '%s\n' "$code" > "$home/code"
gcloud storage cp --quiet "$home/log" "$state/log/$me" || true
report "$code"
