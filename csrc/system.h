/* system.h - what the core asks of the kernel: time, futexes, who lives, files in memory, and how much memory there is.
 *
 * Nothing here knows a segment, and nothing keeps a state. Results are 0 or -errno, times CLOCK_MONOTONIC nanoseconds.
 */
#ifndef SLIPRING_SYSTEM_H
#define SLIPRING_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* ---- system.c: clocks, futexes, processes --------------------------------------------------------------- */

uint64_t sr_now(void);
/* The same as of the last tick, some ms ago at most: a third of the price. */
uint64_t sr_now_coarse(void);
/* Processor time that this process has had, or this thread of it. */
uint64_t sr_cpu_time(bool of_the_thread);
/* How long this thread was ready to run and had no processor; 0 where the kernel does not tell. */
uint64_t sr_queued_time(void);

/* Futex on a word shared between processes: sleeps while *word == seen. 0, -EAGAIN, -EINTR, -ETIMEDOUT. */
int sr_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline);
int sr_futex_wake(_Atomic uint32_t *word, int count);

/* Start time of a process in clock ticks since boot; 0 if there is no such process, or /proc cannot tell: it is not
 * there, or another PID namespace's. */
uint64_t sr_start_time(int pid);
/* The same, and where its stack began, which each program has for itself; 0: unknown. */
uint64_t sr_process(int pid, uint64_t *stack);

/* What a process is known by, as an incarnation. 0 is nobody. */
uint64_t sr_incarnation_of(int pid);
/* What tells the program that an incarnation runs from one that it has become by exec; 0: unknown. */
uint64_t sr_program_of(uint64_t incarnation);
/* Whether that process has ended, all its threads too, or runs another program than `program` (0: it does not matter).
 * 1, 0; -errno if it has not as far as can be told, for no descriptor was to be had. */
int sr_has_gone(uint64_t incarnation, uint64_t program);
uint64_t sr_pid_namespace(void);

/* ---- files.c: files in memory --------------------------------------------------------------------------- */

enum sr_backing { SR_BACKING_AUTO = 0, SR_BACKING_SHM = 1, SR_BACKING_MEMFD = 2, SR_BACKING_DIR = 3 };

/* A new file that has no name. `where`: for SR_BACKING_DIR a directory on a tmpfs, for SR_BACKING_MEMFD a label that
 * /proc shows, or NULL. The descriptor, or -errno; *chosen and *reason: which backing it is, and why. */
int sr_open_memory(int backing, const char *where, int *chosen, const char **reason);

/* Moves a new descriptor away from the standard streams' numbers; -1 with errno, as what made it. */
int sr_beyond_standard(int fd);

/* A file that a handle knows again: its number may be another file's by now. */
typedef struct sr_file {
    int fd;
    dev_t device;
    ino_t inode;
} sr_file;
int sr_know_file(sr_file *file, int fd);
int sr_file_fd(const sr_file *file); /* -EBADF: it has been closed */

/* Maps a whole file without touching it. */
/* Opens, or makes, a file at `path`, or, as long as living processes have that, at path.2, path.3, ...; *number tells
 * which. It is empty, and locked (flock) until the last process has closed it. What is there and does not begin with
 * `magic` is left alone: -EEXIST. -EINVAL: not a file. */
int sr_open_record(const char *path, uint64_t magic, uint32_t *number);
int sr_map_file(int fd, uint64_t total, char **base);
/* fallocate, and its opposite. */
int sr_put_memory(int fd, uint64_t offset, uint64_t length);
int sr_drop_memory(char *at, uint64_t length);

/* ---- limits.c: is there memory? ------------------------------------------------------------------------- */

/* Why memory could not be committed. */
enum sr_limit { SR_LIMIT_NONE = 0, SR_LIMIT_FILESYSTEM, SR_LIMIT_CGROUP, SR_LIMIT_MEMORY, SR_LIMIT_FILESIZE,
                SR_LIMIT_CAPACITY, SR_LIMIT_ADDRESS, SR_LIMIT_MAPPED, SR_LIMIT_MAPPINGS, SR_LIMIT_LOCKED };
typedef struct sr_shortage {
    int limit;       /* enum sr_limit */
    uint64_t needed; /* bytes to commit in addition */
    uint64_t free;   /* bytes that the limit leaves, its safety margin deducted */
} sr_shortage;

/* Bytes that may still be committed before the file system behind fd, a memory cgroup (v1 or v2, any
 * ancestor) or the machine runs out; *limit says which is the narrowest. `root` is put before /proc and
 * /sys ("" outside tests). */
uint64_t sr_headroom(int fd, const char *root, int *limit);

/* What processes may still write before a memory cgroup or the machine runs out, and where that stands. */
typedef struct sr_room {
    uint64_t free;   /* bytes, a safety margin deducted; UINT64_MAX: nothing limits */
    uint64_t size;   /* the limit itself: the group's, the machine's memory */
    int limit;       /* SR_LIMIT_CGROUP, SR_LIMIT_MEMORY or SR_LIMIT_NONE */
    char file[1024]; /* where the limit stands: "/sys/fs/cgroup/.../memory.max" */
} sr_room;
int sr_room_left(const char *root, sr_room *out);
/* This process's addresses, all and those in use. */
uint64_t sr_address_space(void);
uint64_t sr_mapped_bytes(void);

#endif
