/* incarnations.c - participant numbers of a queue segment. A process dies; a survivor and a newcomer recover it
 * concurrently, and the newcomer takes its number as soon as it can. Or one of these two processes dies.
 */
#include "model.h"

enum { NUMBER = 1 }; /* participant 0 owns all other numbers */

static uint32_t take_number(uint32_t me)
{
    uint32_t number = UINT32_MAX;
    MUST(sr_enter(ring, &number) == 0 && number == NUMBER);
    books.number[me] = (uint8_t)(number + 1);
    return number;
}

/* Claim a slot, give it up and leave. */
static void come_and_go(uint32_t me)
{
    uint32_t number = take_number(me), slot;
    uint64_t gen;
    MUST(sr_claim_free(ring, number, SR_FOREVER, &slot, &gen) == 0);
    MUST(books.fills[slot] == 0);
    books.fills[slot] = (uint8_t)(me + 1);
    if (plan->grows)
        MUST(sr_commit(ring, number, slot, SR_PAGE, NULL) == 0);
    put(slot, WHOLE_OBJECT, 0, me);
    MUST(get(slot, WHOLE_OBJECT, 0) == me);
    MUST(ring->participants[number].status == SR_PARTICIPANT_JOINED);
    MUST(me == VICTIM || sr_leave(ring, number) == -EBUSY);
    books.fills[slot] = 0;
    if (plan->holds)
        MUST(sr_park(ring, number, slot, gen) == 0 && sr_unpin(ring, number, slot, gen) == 0);
    else
        MUST(sr_abort(ring, number, slot, gen) == 0);
    MUST(sr_leave(ring, number) == 0);
}

void incarnations(uint32_t me)
{
    if (me == VICTIM || me == NEWCOMER) {
        come_and_go(me);
        return;
    }
    if (me == SURVIVOR) {
        MUST(sr_recover_dead(ring, true) >= 0);
        return;
    }
    for (uint32_t p = 0; p < ring->n_participants; p++)
        if (p != NUMBER)
            ring->participants[p].incarnation = FIRST_PID;
    spawn(VICTIM);
    wait_until(victim_has_gone);
    if (books.life[VICTIM] == DEAD)
        confirm_death(VICTIM);
    spawn(SURVIVOR);
    spawn(NEWCOMER);
    wait_until(recoveries_have_ended);
    for (uint32_t p = SURVIVOR; p <= NEWCOMER; p++)
        if (books.life[p] == DEAD)
            confirm_death(p);
    MUST(sr_recover_dead(ring, true) >= 0);
    for (uint32_t p = 0; p < ring->n_participants; p++)
        if (p != NUMBER)
            ring->participants[p].incarnation = 0;
    for (uint32_t i = 0; i < plan->slots; i++)
        MUST(sr_state_of(ring->slots[i].state) == SR_FREE);
    MUST(ring->participants[NUMBER].incarnation == 0 && sr_pages_of(ring->participants[NUMBER].growing) == 0);
}
