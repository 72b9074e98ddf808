/* fork.c - which side of a fork is this? */
#include <pthread.h>

#include "handle.h"

static _Atomic uint64_t generation;

static void count_fork(void) { sr_add_relaxed(&generation, 1); }

/* Runs when the library is loaded, so that a fork can never come before it. */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

uint64_t sr_fork_generation(void) { return sr_load_relaxed(&generation); }
