/* files.c - descriptors: never the numbers of the standard streams, and never somebody else's file.
 *
 * A program may have been started without a standard stream: then the first file that is opened takes its number,
 * and is written over by messages of C code. And code that closes descriptors it did not open (os.closerange)
 * closes ours: then the next file that is opened has the number that this handle remembers.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "handle.h"

int sr_beyond_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return moved;
}

int sr_know_file(sr_ring *ring, int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    ring->fd = fd;
    ring->device = st.st_dev;
    ring->inode = st.st_ino;
    return 0;
}

int sr_fd(const sr_ring *ring)
{
    struct stat st;
    if (fstat(ring->fd, &st) != 0)
        return -EBADF;
    return st.st_dev == ring->device && st.st_ino == ring->inode ? ring->fd : -EBADF;
}
