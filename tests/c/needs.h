/* needs.h - features that user-mode emulators lack (`make test-arm64`); tests check for them on every machine. */
#ifndef SLIPRING_NEEDS_H
#define SLIPRING_NEEDS_H

#include <sys/mman.h>
#include <sys/resource.h>

#include "check.h"

static inline void needs_limits_on_addresses(void)
{
    struct rlimit had, set, is;
    CHECK_OK(getrlimit(RLIMIT_AS, &had));
    set = had;
    if (set.rlim_cur > UINT64_C(1) << 46)
        set.rlim_cur = UINT64_C(1) << 46;
    CHECK_OK(setrlimit(RLIMIT_AS, &set));
    CHECK_OK(getrlimit(RLIMIT_AS, &is));
    CHECK_OK(setrlimit(RLIMIT_AS, &had));
    if (is.rlim_cur != set.rlim_cur)
        SKIP("setrlimit(RLIMIT_AS) has no effect here");
}

static inline void needs_second_mappings(void)
{
    char *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    char *again = mremap(at, 0, 65536, MREMAP_MAYMOVE);
    CHECK_OK(munmap(at, 65536));
    if (again == MAP_FAILED)
        SKIP("mremap does not map shared bytes once more here");
    CHECK_OK(munmap(again, 65536));
}

static inline void needs_holes(void)
{
    char *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    int rc = madvise(at, 65536, MADV_REMOVE), error = errno;
    CHECK_OK(munmap(at, 65536));
    if (rc != 0 && error == EOPNOTSUPP)
        SKIP("madvise(MADV_REMOVE) is not supported here: no memory can be given back");
    CHECK_OK(rc);
}

#endif
