/* check.h - a minimal framework for C tests.
 *
 * A test is a function whose name is a sentence. Each runs in its own process group with a watchdog, so
 * that a crash or a hang is reported like a failure, and leaves no process behind.
 */
#ifndef SLIPRING_CHECK_H
#define SLIPRING_CHECK_H

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIPPED 77

struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
};
static struct test *first_test, **last_test = &first_test;

/* Defines a test and adds it to those that RUN_TESTS runs, in the order of their definitions. */
#define TEST(function)                                                                                          \
    static void function(void);                                                                                 \
    __attribute__((constructor)) static void add_##function(void)                                               \
    {                                                                                                           \
        static struct test test = {#function, function, NULL};                                                  \
        *last_test = &test;                                                                                     \
        last_test = &test.next;                                                                                 \
    }                                                                                                           \
    static void function(void)

static void (*at_failure)(void); /* called before a failed test ends, which skips the functions of atexit() */

static inline _Noreturn void fail_at(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    fflush(stderr);
    if (at_failure)
        at_failure();
    _exit(1);
}

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition))                                                                                       \
            fail_at(__FILE__, __LINE__, "not true: " #condition);                                               \
    } while (0)

/* Both values are printed as signed if they look like -errno, otherwise as unsigned. */
static inline void check_compared(const char *file, int line, const char *what, bool ok, int64_t a, int64_t b)
{
    char text[512];
    if (ok)
        return;
    snprintf(text, sizeof text, "not true: %s (left: %" PRId64 " = 0x%" PRIx64 ", right: %" PRId64 " = 0x%" PRIx64 ")",
             what, a, (uint64_t)a, b, (uint64_t)b);
    fail_at(file, line, text);
}

#define CHECK_OP(a, op, b)                                                                                      \
    do {                                                                                                        \
        int64_t left = (int64_t)(a), right = (int64_t)(b);                                                      \
        check_compared(__FILE__, __LINE__, #a " " #op " " #b, left op right, left, right);                      \
    } while (0)
#define CHECK_EQ(a, b) CHECK_OP(a, ==, b)
#define CHECK_OK(call) CHECK_OP(call, ==, 0)

#define SKIP(reason)                                                                                            \
    do {                                                                                                        \
        printf("      skipped: %s\n", reason);                                                                  \
        fflush(stdout);                                                                                         \
        _exit(SKIPPED);                                                                                         \
    } while (0)

/* Runs one test; returns 0, SKIPPED or 1. */
static inline int run_test(const struct test *test, unsigned seconds)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        alarm(seconds); /* not caught: the process ends, and its parent reports it */
        test->run();
        exit(0);
    }
    setpgid(pid, pid);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    kill(-pid, SIGKILL); /* processes that the test has left running */
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        return SKIPPED;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        printf("FAIL  %s: still not done after %u s (watchdog)\n", test->name, seconds);
    else if (WIFSIGNALED(status))
        printf("FAIL  %s: ended by signal %d (%s)\n", test->name, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        printf("FAIL  %s\n", test->name);
    return 1;
}

/* Runs the tests whose names contain argv[1], or all. The last line is for run.sh, which adds them up. */
static inline int run_tests(unsigned seconds, int argc, char **argv)
{
    int passed = 0, failed = 0, skipped = 0;
    for (const struct test *test = first_test; test; test = test->next) {
        if (argc > 1 && !strstr(test->name, argv[1]))
            continue;
        int rc = run_test(test, seconds);
        passed += rc == 0;
        skipped += rc == SKIPPED;
        failed += rc == 1;
        if (rc != 1)
            printf("%s  %s\n", rc == 0 ? "ok  " : "skip", test->name);
    }
    printf("# %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}

#define RUN_TESTS(seconds)                                                                                      \
    int main(int argc, char **argv) { return run_tests(seconds, argc, argv); }

#endif
