/* Let the n-th call of one function fail, once: this library is preloaded (LD_PRELOAD) before libc.
 *
 * It sees only calls through a dynamic symbol: those of our modules, numpy and the interpreter, not those that libc
 * makes within itself. The count is shared with forked children, so that one call fails among all of them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#define ANY_WAIT 0x7f /* a futex operation without its flags */

struct plan {
    char function[32];
    long n; /* -1: only count them */
    int error;
    bool in_children;
    pid_t owner;
    _Atomic bool armed, failed;
    _Atomic long calls;
};

static struct plan *plan;

static bool fails(const char *function)
{
    if (!plan || !atomic_load(&plan->armed) || strcmp(plan->function, function) != 0)
        return false;
    if ((getpid() != plan->owner) != plan->in_children)
        return false;
    if (atomic_fetch_add(&plan->calls, 1) != plan->n)
        return false;
    atomic_store(&plan->failed, true);
    errno = plan->error;
    return true;
}

/* From now on the n-th call of `function` fails, in this process or (`in_children`) in those that it forks. */
int calls_arm(const char *function, long n, int error, int in_children)
{
    if (!plan) {
        void *at = (void *)syscall(SYS_mmap, NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                                   -1, 0);
        if (at == MAP_FAILED)
            return -1;
        plan = at;
    }
    snprintf(plan->function, sizeof plan->function, "%s", function);
    plan->n = n;
    plan->error = error;
    plan->in_children = in_children;
    plan->owner = getpid();
    atomic_store(&plan->failed, false);
    atomic_store(&plan->calls, 0);
    atomic_store(&plan->armed, true);
    return 0;
}

/* Stop; return how many calls there were. */
long calls_disarm(void)
{
    atomic_store(&plan->armed, false);
    return atomic_load(&plan->calls);
}

int calls_failed(void) { return atomic_load(&plan->failed); }

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* A function with fixed arguments: its result, name, parameters, arguments, label, and the result of a failure. */
#define WRAP(result, name, parameters, arguments, called, failure) \
    result name parameters \
    { \
        REAL(name); \
        if (fails(called)) \
            return failure; \
        return real arguments; \
    }

#define WRAP_OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        return fails("open") ? -1 : real(path, flags, mode); \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

static bool armed_for(const char *function)
{
    return plan && atomic_load(&plan->armed) && strcmp(plan->function, function) == 0;
}

long syscall(long number, ...)
{
    REAL(syscall);
    va_list more;
    long a[6];
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_pidfd_open && fails("pidfd_open"))
        return -1;
    if (number == SYS_memfd_create && fails("memfd_create"))
        return -1;
    /* Our waits have a timeout and all bits; FUTEX_WAKE cannot fail. */
    if (number == SYS_futex && (a[1] & ANY_WAIT) == 9 && fails("futex"))
        return -1;
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Only calls of our own modules themselves. */
static bool ours(void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "/slipring/");
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);

void *malloc(size_t n)
{
    bool no = armed_for("malloc") && ours(__builtin_return_address(0)) && fails("malloc");
    return no ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    bool no = armed_for("malloc") && ours(__builtin_return_address(0)) && fails("malloc");
    return no ? NULL : __libc_calloc(n, size);
}

WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), "open", NULL)
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode), "open", NULL)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset), (at, n, prot, flags, fd, offset),
     "mmap", MAP_FAILED)
WRAP(void *, mmap64, (void *at, size_t n, int prot, int flags, int fd, off_t offset), (at, n, prot, flags, fd, offset),
     "mmap", MAP_FAILED)
WRAP(int, mprotect, (void *at, size_t n, int prot), (at, n, prot), "mprotect", -1)
WRAP(int, munlock, (const void *at, size_t n), (at, n), "munlock", -1)
WRAP(int, madvise, (void *at, size_t n, int advice), (at, n, advice), "madvise", -1)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), "ftruncate", -1)
WRAP(int, ftruncate64, (int fd, off_t n), (fd, n), "ftruncate", -1)
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), "fallocate", -1)
WRAP(int, fallocate64, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), "fallocate", -1)
WRAP(pid_t, fork, (void), (), "fork", -1)
WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t *how, void *(*run)(void *), void *with),
     (t, how, run, with), "pthread_create", plan->error)
WRAP(int, pipe, (int fds[2]), (fds), "pipe", -1)
WRAP(int, pipe2, (int fds[2], int flags), (fds, flags), "pipe", -1)
WRAP(int, eventfd, (unsigned n, int flags), (n, flags), "eventfd", -1)
WRAP(int, epoll_create1, (int flags), (flags), "epoll_create1", -1)
WRAP(int, epoll_wait, (int epoll, struct epoll_event *events, int most, int ms), (epoll, events, most, ms),
     "epoll_wait", -1)
WRAP(int, dup, (int fd), (fd), "dup", -1)
WRAP(int, statfs, (const char *path, struct statfs *fs), (path, fs), "statfs", -1)
WRAP(int, fstatfs, (int fd, struct statfs *fs), (fd, fs), "statfs", -1)
WRAP(int, poll, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms), "poll", -1)
WRAP(pid_t, waitpid, (pid_t pid, int *status, int how), (pid, status, how), "waitpid", -1)

void *mremap(void *at, size_t n, size_t now, int flags, ...)
{
    REAL(mremap);
    va_list more;
    va_start(more, flags);
    void *to = va_arg(more, void *);
    va_end(more);
    return fails("mremap") ? MAP_FAILED : real(at, n, now, flags, to);
}

/* The removal of one cannot fail. */
int epoll_ctl(int epoll, int verb, int fd, struct epoll_event *event)
{
    REAL(epoll_ctl);
    return verb == EPOLL_CTL_ADD && fails("epoll_ctl") ? -1 : real(epoll, verb, fd, event);
}
