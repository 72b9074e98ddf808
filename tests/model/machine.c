/* machine.c - the participants as coroutines, which start, pause before each access, choose, wait and die. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "model.h"

/* sr_memory_available alone uses 63 KiB of stack for the files that it reads. */
enum { STACK = 131072, DEPTH = 2048 };

struct body {
    jmp_buf at;
    char *low; /* end of the used part of the stack */
};

const struct scenario *plan;
struct books books;
uint32_t self;
bool violation;
uint32_t spawned;
void (*step_seen)(const char *, const void *, const void *, uint64_t);

static struct sr_ring handle;
sr_ring *ring = &handle;
_Alignas(SR_PAGE) char segment[SEGMENT_BYTES];
static _Atomic uint64_t populated[MAX_SLOTS];
static _Alignas(64) char stacks[MAX_PARTICIPANTS][STACK];
static struct body bodies[MAX_PARTICIPANTS];
static struct saved newborn[MAX_PARTICIPANTS];
static jmp_buf scheduler;
static ucontext_t first_context, back;
bool inside;

/* ---- switching ---- */

static char *stack_pointer(void)
{
    char *sp;
#if defined(__x86_64__)
    __asm__ volatile("movq %%rsp, %0" : "=r"(sp));
#else
    __asm__ volatile("mov %0, sp" : "=r"(sp));
#endif
    return sp;
}

__attribute__((noinline)) void pause_here(void)
{
    bodies[self].low = stack_pointer();
    inside = false;
    if (_setjmp(bodies[self].at) == 0)
        _longjmp(scheduler, 1);
    inside = true;
}

static void live(void)
{
    pause_here();
    plan->participant(self);
    books.life[self] = ENDED;
    for (;;)
        pause_here();
}

void machine_run(uint32_t participant)
{
    self = participant;
    spawned = 0;
    books.life[participant] = RUNS;
    /* Clear the remains of earlier calls below the stack, or equal states would differ. */
    memset(bodies[participant].low - DEPTH, 0, DEPTH);
    if (_setjmp(scheduler) == 0)
        _longjmp(bodies[participant].at, 1);
}

void violated(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("  VIOLATED by participant %u: ", self);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    violation = true;
    inside = false;
    _longjmp(scheduler, 1);
}

uint32_t choose(uint32_t options)
{
    if (options < 2)
        return 0;
    books.life[self] = CHOOSES;
    books.options[self] = (uint8_t)options;
    pause_here();
    uint32_t answer = books.answer[self];
    books.answer[self] = books.options[self] = 0;
    return answer;
}

void wait_until(bool (*condition)(uint32_t))
{
    books.life[self] = AWAITS;
    books.until[self] = condition;
    pause_here();
    books.until[self] = NULL;
}

bool machine_may_run(uint32_t participant)
{
    return books.life[participant] == RUNS ||
    (books.life[participant] == AWAITS && books.until[participant](participant));
}

bool has_gone(uint32_t participant)
{
    return books.life[participant] == ENDED || books.life[participant] == DEAD;
}

bool victim_has_gone(uint32_t me)
{
    (void)me;
    return has_gone(VICTIM);
}

bool recoveries_have_ended(uint32_t me)
{
    (void)me;
    return has_gone(SURVIVOR) && has_gone(NEWCOMER);
}

void spawn(uint32_t participant)
{
    books.life[participant] = RUNS;
    books.knows[participant] = books.knows[self];
    spawned |= 1u << participant;
    machine_load_participant(participant, newborn[participant].bytes, newborn[participant].length);
}

void confirm_death(uint32_t participant)
{
    MUST(books.life[participant] == DEAD);
    books.knows[self] |= books.knows[participant];
    for (uint32_t s = 0; s < plan->slots; s++) {
        books.fills[s] = books.fills[s] == participant + 1 ? 0 : books.fills[s];
        for (uint32_t r = 0; r < MAX_RANGES; r++)
            books.fills_range[s][r] = books.fills_range[s][r] == participant + 1 ? 0 : books.fills_range[s][r];
    }
}

static void forget_wait(uint32_t participant)
{
    books.futex[participant] = books.looks[participant] = 0;
    books.bounded[participant] = 0;
}

void machine_kill(uint32_t participant)
{
    self = participant;
    spawned = 0;
    if (plan->on_death)
        plan->on_death(participant);
    forget_wait(participant);
    books.life[participant] = DEAD;
    books.unreaped[participant] = 1;
    books.until[participant] = NULL;
    books.options[participant] = books.answer[participant] = 0;
    bodies[participant].low = stacks[participant] + STACK; /* its stack is empty */
    memset(bodies[participant].at, 0, sizeof bodies[participant].at);
}

void machine_end_wait(uint32_t participant, int error)
{
    forget_wait(participant);
    books.why[participant] = (uint8_t)error;
    books.life[participant] = RUNS;
}

void machine_save_participant(uint32_t participant, struct saved *to)
{
    struct body *b = &bodies[participant];
    uint32_t depth = (uint32_t)(stacks[participant] + STACK - b->low);
    to->length = (uint32_t)sizeof *b + depth;
    if (to->length > sizeof to->bytes)
        abort();
    memcpy(to->bytes, b, sizeof *b);
    memcpy(to->bytes + sizeof *b, b->low, depth);
}

void machine_load_participant(uint32_t participant, const uint8_t *bytes, uint32_t length)
{
    memcpy(&bodies[participant], bytes, sizeof bodies[participant]);
    memcpy(bodies[participant].low, bytes + sizeof bodies[participant], length - sizeof bodies[participant]);
}

uint32_t machine_regions(uint32_t component, struct region *out)
{
    if (component == 0) {
        out[0] = (struct region){&books, sizeof books};
        out[1] = (struct region){&handle.header->iteration, sizeof(sr_header) - offsetof(sr_header, iteration)};
        out[2] = (struct region){handle.participants, (uint32_t)sizeof(sr_participant) * handle.n_participants};
        out[3] = (struct region){segment + RECORDS_AT, plan->records ? SR_RECORDS * (uint32_t)sizeof(sr_record) : 0};
        if (plan->pooled)
            return 3 + pool_regions(out + 3);
        return plan->caches ? 3 + cache_regions(out + 3) : 4;
    }
    /* Everything except the stamps: nothing depends on them. */
    sr_slot *s = &handle.slots[component - 1];
    out[0] = (struct region){s, offsetof(sr_slot, times)};
    out[1] = (struct region){&s->layout, plan->readers ? 32 : 8}; /* and what follows it, for shared batches */
    out[2] = (struct region){s->ranges, (uint32_t)sizeof(sr_range) * plan->ranges};
    out[3] = (struct region){sr_task_area(ring, component - 1), 8};
    out[4] = (struct region){sr_payload(ring, component - 1), plan->ranges ? PAYLOAD : 16};
    out[5] = (struct region){&s->times, plan->records || plan->watched ? 8 * SR_TIMES : 0};
    return 6;
}

/* Run a participant on its own stack until its first pause. */
static __attribute__((noinline)) void give_birth(uint32_t participant)
{
    self = participant;
    getcontext(&first_context);
    first_context.uc_stack.ss_sp = stacks[participant];
    first_context.uc_stack.ss_size = STACK;
    first_context.uc_link = &back;
    makecontext(&first_context, live, 0);
    if (_setjmp(scheduler) == 0)
        setcontext(&first_context);
    machine_save_participant(self, &newborn[self]);
}

void machine_begin(const struct scenario *scenario)
{
    plan = scenario;
    memset(segment, 0, sizeof segment);
    memset(&books, 0, sizeof books);
    handle = (struct sr_ring){.base = segment, .header = (sr_header *)segment,
                              .participants = (sr_participant *)(segment + SR_PAGE),
        .slots = (sr_slot *)(segment + 2 * SR_PAGE), .n_slots = plan->slots, .n_participants = plan->workers + 1,
        .n_readers = plan->readers,
        .flags = plan->flags, .data_off = SR_PAGE * (3 + MAX_SLOTS), .stride = PAYLOAD_STRIDE,
        .task_capacity = SR_PAGE, .capacity = plan->trims || plan->divides ? 4 * SR_PAGE : SR_PAGE,
        .populated = populated};
    if (plan->records) /* no scenario has enough records for an update of the totals */
        handle.records = (sr_record *)(segment + RECORDS_AT);
    for (uint32_t i = 0; i < plan->slots; i++) {
        handle.slots[i].committed = plan->grows ? 0 : handle.capacity;
        populated[i] = handle.capacity;
        handle.slots[i].task_committed = SR_PAGE;
        /* The generation wraps within a few batches. */
        handle.slots[i].state = sr_word(SR_FREE, 0, (UINT64_MAX >> SR_GEN_SHIFT) - i);
    }
    memset(books.orphans, plan->trims, plan->slots);
    if (plan->caches)
        cache_begin();
    if (plan->pooled)
        pool_begin();
    books.deaths = (uint8_t)plan->deaths;
    books.signals = (uint8_t)plan->signals;
    books.absences = (uint8_t)plan->leaves;
    memset(books.knows, 0xff, sizeof books.knows);
    memset(books.hands_on, 0, sizeof books.hands_on);
    memset(stacks, 0, sizeof stacks);
    for (uint32_t p = 0; p <= plan->workers; p++)
        give_birth(p), books.life[p] = plan->late && p ? NOBODY : RUNS;
}
