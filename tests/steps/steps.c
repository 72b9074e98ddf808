/* steps.c - counts the hits of the stop points of steps.h, and kills or stops a participant at chosen points.
 *
 * The orders are on a page that forked workers share with the test that gives them: tests/fault/points.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "steps.h"

#define STRIKES 4
#define MOST_STEPS 1024
#define SEEN_FROM_TESTS __attribute__((visibility("default")))

typedef struct strike {
    _Atomic int32_t step;  /* number of the point; -1: none */
    int32_t participant;   /* its number; -1: any worker */
    int32_t how;           /* a signal; 0: _exit(3) */
    int32_t times;         /* how many participants it kills or stops */
    _Atomic int32_t left;  /* hits to skip before */
    _Atomic int32_t done;  /* how many it has killed or stopped */
    _Atomic int32_t pid, worker; /* of the last one: pid, participant - 1 */
} strike;

typedef struct board {
    strike strikes[STRIKES];
    _Atomic uint32_t hits[2][MOST_STEPS]; /* of the consumer, of workers */
} board;

extern const sr_step *const __start_sr_steps[], *const __stop_sr_steps[];
static board *orders;
static int my_pid = -1, told_pid = -1;
static uint32_t me;

__attribute__((constructor)) static void share_orders(void)
{
    orders = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (orders == MAP_FAILED)
        _exit(70);
    for (int i = 0; i < STRIKES; i++)
        orders->strikes[i].step = -1;
}

SEEN_FROM_TESTS int sr_steps_count(void) { return (int)(__stop_sr_steps - __start_sr_steps); }
SEEN_FROM_TESTS const sr_step *sr_steps_at(int i) { return __start_sr_steps[i]; }
SEEN_FROM_TESTS board *sr_steps_board(void) { return orders; }

void sr_step_as(uint32_t participant)
{
    if (told_pid == (int)getpid())
        return;
    me = participant;
    my_pid = (int)getpid();
}

/* Set the participant of this process, whatever number it joins with: a process that shares a queue gets its number
 * late and may free it again. */
SEEN_FROM_TESTS void sr_steps_be(uint32_t participant)
{
    sr_step_as(participant);
    told_pid = my_pid;
}

static void end_as(int how)
{
    if (how == 0)
        _exit(3);
    if (how != SIGKILL && how != SIGSTOP)
        signal(how, SIG_DFL);
    raise(how);
}

void sr_step_here(const sr_step *const *point)
{
    int32_t i = (int32_t)(point - __start_sr_steps);
    if (getpid() != my_pid) /* forked, and not yet a participant */
        return;
    int before = errno;
    if (i < MOST_STEPS)
        orders->hits[me != 0][i]++;
    for (strike *s = orders->strikes; s < orders->strikes + STRIKES; s++) {
        if (s->step != i || (s->participant != (int32_t)me && !(s->participant < 0 && me != 0)))
            continue;
        int32_t left = s->left--;
        if (left > 0 || left <= -s->times)
            continue;
        s->pid = my_pid;
        s->worker = (int32_t)me - 1;
        s->done++;
        end_as(s->how);
    }
    errno = before;
}
