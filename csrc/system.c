/* system.c - time and processes: the clock, futexes, and which processes live. It keeps no state. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "system.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

uint64_t sr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t sr_now_coarse(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t sr_cpu_time(bool of_the_thread)
{
    struct timespec t;
    clock_gettime(of_the_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t sr_queued_time(void)
{
    char text[96];
    unsigned long long on, queued;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    return sscanf(text, "%llu %llu", &on, &queued) == 2 ? queued : 0;
}

int sr_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline)
{
    struct timespec at = {.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
                          .tv_nsec = (long)(deadline % UINT64_C(1000000000))};
    /* WAIT_BITSET takes an absolute deadline; without FUTEX_PRIVATE_FLAG it works across processes. There is always a
     * deadline (SR_FOREVER is 585 years): without one, a signal handler with SA_RESTART would not end the wait. */
    long rc = syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_BITSET, seen, &at, NULL, FUTEX_BITSET_MATCH_ANY);
    return rc == 0 ? 0 : -errno;
}

int sr_futex_wake(_Atomic uint32_t *word, int count)
{
    long rc = syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, count, NULL, NULL, 0);
    return rc < 0 ? -errno : 0;
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

/* Read the beginning of a file in /proc; false if there is none. No stdio: this runs in forked children. */
static bool read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Return whether /proc belongs to this process's PID namespace. A container may have the machine's /proc, where a pid
 * of the container means another process. A process may have the same pid in both, so /proc/self is not enough. NSpid
 * lists all its pids, from /proc's namespace inwards. */
static bool proc_is_ours(void)
{
    char text[4096], self[24] = "", *end = NULL;
    if (!read_text("/proc/self/status", text, sizeof text))
        return false;
    const char *numbers = strstr(text, "\nNSpid:");
    if (numbers != NULL)
        return strtol(numbers + 7, &end, 10) == (long)getpid() && *end == '\n';
    /* This kernel has no NSpid. */
    return readlink("/proc/self", self, sizeof self - 1) > 0 && strtol(self, NULL, 10) == (long)getpid();
}

uint64_t sr_process(int pid, uint64_t *stack)
{
    char path[64], text[1024];
    *stack = 0;
    /* The main thread's file has the same contents. A user-mode emulator answers a process that reads its own
     * /proc/PID/stat with numbers that no other process sees. */
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
    if (!proc_is_ours() || !read_text(path, text, sizeof text))
        return 0;
    uint64_t started = 0;
    /* The command name may contain anything, including spaces and brackets: count the fields from the last bracket. */
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 28; field++) {
        p = strchr(p + 1, ' ');
        if (p && field + 1 == 22)
            started = strtoull(p + 1, NULL, 10);
    }
    *stack = p ? strtoull(p + 1, NULL, 10) : 0;
    return started;
}

uint64_t sr_start_time(int pid)
{
    uint64_t stack;
    return sr_process(pid, &stack);
}

uint64_t sr_incarnation_of(int pid) { return (uint32_t)pid | sr_start_time(pid) << 32; }

uint64_t sr_pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* The word names its incarnation by a hash, so it may be read at any time: a word of another incarnation of the number
 * means nothing. */
static uint64_t program_word(uint64_t incarnation, uint64_t stack)
{
    uint32_t of = (uint32_t)((incarnation ^ incarnation >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    uint32_t at = (uint32_t)(stack * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    return stack ? (uint64_t)of << 32 | (at | 1) : 0;
}

uint64_t sr_program_of(uint64_t incarnation)
{
    uint64_t stack;
    (void)sr_process((int)(uint32_t)incarnation, &stack);
    return program_word(incarnation, stack);
}

int sr_has_exited(uint64_t incarnation, uint64_t program)
{
    int pid = (int)(uint32_t)incarnation;
    uint64_t stack;
    uint32_t started = (uint32_t)(incarnation >> 32), now = (uint32_t)sr_process(pid, &stack);
    if (now == 0 && kill(pid, 0) != 0 && errno == ESRCH)
        return 1;
    if (now != 0 && started != 0 && now != started)
        return 1; /* another process has the pid now */
    uint64_t runs = program_word(incarnation, stack);
    if (runs && program && runs >> 32 == program >> 32 && runs != program)
        return 1; /* another stack: it runs another program */
    /* A zombie still has its pid; its pidfd shows that it has ended. */
    struct pollfd fd = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (fd.fd < 0)
        return errno == ESRCH ? 1 : -errno;
    int died = poll(&fd, 1, 0) == 1;
    close(fd.fd);
    return died;
}
