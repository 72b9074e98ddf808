# run.sh VARIANT PROGRAM... -- [FILTER] - runs the programs one after another and adds up what they say.
variant=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:${TSAN_OPTIONS:-}"
programs=
while [ "$1" != -- ]; do
    programs="$programs $1"
    shift
done
shift
for program in $programs; do
    echo "== $variant: $(basename "$program")"
    # The tests have watchdogs of their own; this one is for the program around them.
    timeout -k 5 600 ${RUNNER:-} "$program" "$@" || echo "# $(basename "$program") ended with status $?"
done 2>&1 | tee "$log"
awk -v variant="$variant" '
    /^# [0-9]+ passed/ { passed += $2; failed += $4; skipped += $6 }
    /ended with status/ && !/status 1$/ { failed++ }
    END {
        printf "C tests, %s: %d passed, %d failed, %d skipped\n", variant, passed, failed, skipped
        exit failed != 0 || passed == 0
    }' "$log"
