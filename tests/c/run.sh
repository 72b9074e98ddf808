# run.sh VARIANT PROGRAM... -- [FILTER] - runs the programs, JOBS at a time, and adds up what they say.
variant=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export variant logs
export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:${TSAN_OPTIONS:-}"
programs=
while [ "$1" != -- ]; do
    programs="$programs $1"
    shift
done
shift
# The tests have watchdogs of their own; this one is for the program around them.
printf '%s\n' $programs | xargs -P "${JOBS:-1}" -I '{}' sh -c '
    program=$1
    shift
    log=$logs/$(basename "$program")
    {
        echo "== $variant: $(basename "$program")"
        timeout -k 5 600 ${RUNNER:-} "$program" "$@" || echo "# $(basename "$program") ended with status $?"
    } >"$log" 2>&1
    cat "$log"' sh '{}' "$@" || echo "# xargs ended with status $?" >"$logs/xargs"
cat "$logs"/* | awk -v variant="$variant" '
    /^# [0-9]+ passed/ { passed += $2; failed += $4; skipped += $6 }
    /ended with status/ && !/status 1$/ { failed++ }
    END {
        printf "C tests, %s: %d passed, %d failed, %d skipped\n", variant, passed, failed, skipped
        exit failed != 0 || passed == 0
    }'
