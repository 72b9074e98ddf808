/* system.h - the core's interface to the kernel: time, futexes, identities of processes, files in memory, memory
 * limits.
 *
 * Nothing here knows about segments. Results are 0 or -errno; times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef SLIPRING_SYSTEM_H
#define SLIPRING_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* ---- system.c: clocks, futexes, processes ------------------------------------------------------------------------ */

uint64_t sr_now(void);
/* Like sr_now, but as of the last tick, at most some ms ago: a third of the cost. */
uint64_t sr_now_coarse(void);
/* Return the CPU time of this process, or of this thread. */
uint64_t sr_cpu_time(bool of_the_thread);
/* Return how long this thread was runnable but had no CPU; 0 if the kernel does not report it. */
uint64_t sr_queued_time(void);

/* Sleep on a futex shared between processes, while *word == seen. 0, -EAGAIN, -EINTR, -ETIMEDOUT. */
int sr_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline);
int sr_futex_wake(_Atomic uint32_t *word, int count);

/* Return the start time of a process in clock ticks since boot. 0: there is no such process, or /proc is missing or
 * belongs to another PID namespace. */
uint64_t sr_start_time(int pid);
/* Like sr_start_time; *stack receives where its stack begins, which differs between programs. 0: unknown. */
uint64_t sr_process(int pid, uint64_t *stack);

/* Return the incarnation that identifies a process. 0 means nobody. */
uint64_t sr_incarnation_of(int pid);
/* Return a word that identifies the program that an incarnation runs, and differs after an exec; 0: unknown. */
uint64_t sr_program_of(uint64_t incarnation);
/* Return 1 if that process has ended, with all its threads, or runs another program than `program` (0: any program); 0
 * if not; -errno if it has not as far as is known, because no descriptor was available. */
int sr_has_exited(uint64_t incarnation, uint64_t program);
uint64_t sr_pid_namespace(void);

/* ---- files.c: files in memory ------------------------------------------------------------------------------------ */

enum sr_backing { SR_BACKING_AUTO = 0, SR_BACKING_SHM = 1, SR_BACKING_MEMFD = 2, SR_BACKING_DIR = 3 };

/* Create a file without a name. `where`: for SR_BACKING_DIR a directory on a tmpfs; for SR_BACKING_MEMFD a label that
 * /proc shows, or NULL. Return the descriptor or -errno. *chosen and *reason receive the backing, and why it was
 * chosen. */
int sr_open_memory(int backing, const char *where, int *chosen, const char **reason);

/* A file that a handle can identify again: another file may have its number by now. */
typedef struct sr_file {
    int fd;
    dev_t device;
    ino_t inode;
} sr_file;
int sr_identify_file(sr_file *file, int fd);
int sr_file_fd(const sr_file *file); /* -EBADF: it was closed */

/* Open or create the record file `path`; if a living process has that, then path.2, path.3, and so on. *number receives
 * which. The file is empty, and locked (flock) until the last process has closed it. A file that does not begin with
 * `magic` is left alone: -EEXIST. -EINVAL: not a regular file. */
int sr_open_record(const char *path, uint64_t magic, uint32_t *number);
/* Map a whole file without touching it. */
int sr_map_file(int fd, uint64_t total, char **base);
/* Commit memory with fallocate, and release it. */
int sr_put_memory(int fd, uint64_t offset, uint64_t length);
int sr_drop_memory(char *at, uint64_t length);

/* ---- numa.c: nodes of memory ------------------------------------------------------------------------------------- */

/* Let a shared mapping and its file get new memory from this NUMA node, if it has any. -EINVAL: there is no such node,
 * or a cpuset forbids it; -EPERM, -ENOSYS: a sandbox or the kernel refuses. */
int sr_prefer_node(char *base, uint64_t total, uint32_t node);

/* ---- limits.c: available memory ---------------------------------------------------------------------------------- */

/* Why memory could not be committed. */
enum sr_limit { SR_LIMIT_NONE = 0, SR_LIMIT_FILESYSTEM, SR_LIMIT_CGROUP, SR_LIMIT_MEMORY, SR_LIMIT_FILESIZE,
                SR_LIMIT_CAPACITY, SR_LIMIT_ADDRESS, SR_LIMIT_MAPPED, SR_LIMIT_MAPPINGS, SR_LIMIT_LOCKED,
                SR_LIMIT_BUDGET };
typedef struct sr_alloc_error {
    int limit;       /* enum sr_limit */
    uint64_t needed; /* bytes to commit in addition */
    uint64_t free;   /* bytes that the limit leaves, minus a safety margin */
} sr_alloc_error;

/* The directories of this process's memory cgroups with a limit, open and ready to be locked. */
enum { SR_MAX_CGROUP_LOCKS = 16 };
typedef struct sr_cgroup_locks {
    uint32_t n;
    sr_file dirs[SR_MAX_CGROUP_LOCKS];
} sr_cgroup_locks;

/* Return how many bytes can still be committed. The limits are the file system of fd, each memory cgroup (v1 or v2,
 * with all ancestors), and the machine's memory. *limit receives the lowest one. `root` is put before /proc and /sys
 * ("" outside tests). If `locks` is not NULL, the cgroups with a limit are opened in it. */
uint64_t sr_memory_available(int fd, const char *root, int *limit, sr_cgroup_locks *locks);

/* Lock the limited cgroups (flock), because two segments under one limit do not see each other's announcements. A
 * commit locks them, checks the available memory, and unlocks them after it has its memory. A lock is skipped if for
 * `patience` ns it is not free and the group's shared memory does not grow: its holder may be stopped, and a program
 * must not fail for that while there is memory. */
void sr_lock_cgroups(const sr_cgroup_locks *locks, uint64_t patience);
void sr_unlock_cgroups(sr_cgroup_locks *locks); /* and closes them, locked or not */

/* The patience of a commit with those locks, and the total time that it waits for commits that others announced in its
 * segment. A dead participant's commit is recovered much sooner, unless the recovering participant is the one that
 * waits. */
#define SR_GROW_WAIT_NS UINT64_C(2000000000)

/* How much may still be written before a memory cgroup or the machine runs out, and which limit that is. */
typedef struct sr_memory_info {
    uint64_t free;   /* bytes, minus a safety margin; UINT64_MAX: no limit */
    uint64_t size;   /* the limit itself: of the group, or the machine's memory */
    int limit;       /* SR_LIMIT_CGROUP, SR_LIMIT_MEMORY or SR_LIMIT_NONE */
    char file[1024]; /* where the limit is set: "/sys/fs/cgroup/.../memory.max" */
} sr_memory_info;
int sr_process_memory_available(const char *root, sr_memory_info *out);
/* Return the size of this process's address space, and how much of it is mapped. */
uint64_t sr_address_space(void);
uint64_t sr_mapped_bytes(void);

#endif
