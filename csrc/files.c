/* files.c - files in memory without a name: create, identify and map them, and commit their memory. Also record files.
 *
 * Other code may close their descriptors (os.closerange), and another file may get the number. So sr_file_fd compares
 * device and inode before each use that changes or closes a file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "system.h"

#ifndef O_TMPFILE
#error "O_TMPFILE is missing: the C library's headers are too old"
#endif
#define TMPFS_MAGIC_NUMBER 0x01021994

/* Move a new descriptor away from the numbers of the standard streams, which a daemonised process may have closed: C
 * code that prints would overwrite the file. On failure return -1 with errno, like the call that opened it. */
static int beyond_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return moved;
}

int sr_identify_file(sr_file *file, int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    *file = (sr_file){fd, st.st_dev, st.st_ino};
    return 0;
}

int sr_file_fd(const sr_file *file)
{
    struct stat st;
    if (fstat(file->fd, &st) != 0)
        return -EBADF;
    return st.st_dev == file->device && st.st_ino == file->inode ? file->fd : -EBADF;
}

/* ---- create ------------------------------------------------------------------------------------------------------ */

static int open_unnamed(const char *dir)
{
    /* O_EXCL: no process can name the file later (linkat), so it cannot outlive its processes. */
    int fd = beyond_standard(open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
    return fd < 0 ? -errno : fd;
}

/* The directory must be on a tmpfs: only there does fallocate commit memory. On a disk, each page would be written
 * back, and the file system's free space says nothing about memory. */
static int open_in(const char *dir)
{
    struct statfs fs;
    if (statfs(dir, &fs) != 0)
        return -errno;
    return fs.f_type == TMPFS_MAGIC_NUMBER ? open_unnamed(dir) : -EMEDIUMTYPE;
}

static int open_memfd(const char *label)
{
    enum { CLOEXEC = 1, NOEXEC_SEAL = 8 };
    /* Never executable: some systems refuse other memfds (vm.memfd_noexec). Kernels before 6.3 do not support the
     * flag. */
    int fd = (int)syscall(SYS_memfd_create, label, CLOEXEC | NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = (int)syscall(SYS_memfd_create, label, CLOEXEC);
    fd = beyond_standard(fd);
    if (fd < 0)
        return -errno;
    /* Initially, every process that finds it in /proc may open it. */
    (void)fchmod(fd, 0600);
    return fd;
}

static uint64_t ram_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int open_auto(int *chosen, const char **reason)
{
    struct statfs fs;
    if (statfs("/dev/shm", &fs) != 0 || fs.f_type != TMPFS_MAGIC_NUMBER) {
        *reason = "/dev/shm is not a tmpfs";
    } else if ((uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < ram_bytes() / 4) {
        *reason = "/dev/shm has less free than a quarter of the memory";
    } else {
        int fd = open_unnamed("/dev/shm");
        if (fd >= 0) {
            *chosen = SR_BACKING_SHM;
            *reason = "/dev/shm has room";
            return fd;
        }
        *reason = "/dev/shm does not take nameless files";
    }
    *chosen = SR_BACKING_MEMFD;
    return open_memfd("slipring");
}

int sr_open_memory(int backing, const char *where, int *chosen, const char **reason)
{
    *chosen = backing;
    *reason = "asked for";
    switch (backing) {
    case SR_BACKING_AUTO:
        return open_auto(chosen, reason);
    case SR_BACKING_SHM:
        return open_in("/dev/shm");
    case SR_BACKING_MEMFD:
        return open_memfd(where ? where : "slipring");
    case SR_BACKING_DIR:
        return where ? open_in(where) : -EINVAL;
    default:
        return -EINVAL;
    }
}

/* ---- record files, which outlive their processes ----------------------------------------------------------------- */

enum { MOST_RECORDS = 999 };

/* Open and lock a record file. -EWOULDBLOCK: a living process has it. */
static int take_record(const char *path, uint64_t magic)
{
    struct stat st;
    uint64_t begins = 0;
    int fd = beyond_standard(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
    if (fd < 0)
        return -errno;
    int rc = fstat(fd, &st) != 0 ? -errno : S_ISREG(st.st_mode) ? 0 : -EINVAL;
    if (rc == 0 && st.st_size > 0 && (pread(fd, &begins, sizeof begins, 0) != sizeof begins || begins != magic))
        rc = -EEXIST;
    if (rc == 0 && flock(fd, LOCK_EX | LOCK_NB) != 0)
        rc = -errno;
    if (rc == 0 && st.st_size == 0)
        return fd;
    /* The file of an earlier job. A process may be reading it, so it is replaced and never truncated. */
    if (rc == 0) {
        int fresh = -1;
        if (unlink(path) == 0)
            fresh = beyond_standard(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (fresh >= 0 && flock(fresh, LOCK_EX | LOCK_NB) == 0) {
            close(fd);
            return fresh;
        }
        rc = errno == EEXIST ? -EWOULDBLOCK : -errno; /* another process was faster and has this name */
        if (fresh >= 0)
            close(fresh);
    }
    close(fd);
    return rc;
}

int sr_open_record(const char *path, uint64_t magic, uint32_t *number)
{
    char name[4096];
    for (uint32_t n = 1; n <= MOST_RECORDS; n++) {
        int length = snprintf(name, sizeof name, n == 1 ? "%s" : "%s.%u", path, n);
        if (length < 0 || (size_t)length >= sizeof name)
            return -ENAMETOOLONG;
        int fd = take_record(name, magic);
        if (fd != -EWOULDBLOCK) {
            *number = fd < 0 ? 0 : n;
            return fd;
        }
    }
    return -EMFILE;
}

/* ---- mapping and memory ------------------------------------------------------------------------------------------ */

/* Map the whole file without touching it. In a process that locks all its future mappings (mlockall), the kernel would
 * allocate the whole reserve. It does not as long as the mapping allows no access. */
int sr_map_file(int fd, uint64_t total, char **base)
{
    *base = mmap(NULL, total, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (*base == MAP_FAILED)
        return -errno;
    if (munlock(*base, total) == 0 && mprotect(*base, total, PROT_READ | PROT_WRITE) == 0)
        return 0;
    int rc = -errno;
    munmap(*base, total);
    return rc;
}

int sr_put_memory(int fd, uint64_t offset, uint64_t length)
{
    int rc;
    do {
        rc = fallocate(fd, 0, (off_t)offset, (off_t)length) == 0 ? 0 : -errno;
    } while (rc == -EINTR);
    return rc;
}

/* By address: another file may have the descriptor's number by now, and a hole would destroy its data. */
int sr_drop_memory(char *at, uint64_t length)
{
    return madvise(at, length, MADV_REMOVE) == 0 ? 0 : -errno;
}
