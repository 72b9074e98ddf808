/* A slot of a loader segment: dispatch, claim, publish, take and release, and the states that allow each. */
#include "fixture.h"

TEST(a_slot_passes_through_all_states_from_dispatch_to_release)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    uint32_t slot, range, found;
    uint64_t gen, claimed, taken;
    sr_task task = {.iteration = 5, .epoch = 2, .seq = 9, .seed = 77, .kind = SR_TASK_INDICES, .rows = 3, .bytes = 24};
    sr_result in = {.kind = SR_BATCH, .table_off = 64, .def_off = 128, .def_hash = 1234, .bytes = 4096,
                    .n_leaves = 2, .def_bytes = 10, .flags = 3, .pickled = 1}, out;

    CHECK_OK(sr_begin_iteration(ring, 5));
    CHECK_OK(sr_pick_free(ring, &slot));
    memcpy(sr_task_area(ring, slot), "indices", 8);
    CHECK_OK(sr_dispatch(ring, slot, &task, &gen));
    CHECK_EQ(state_of(ring, slot), SR_TASK);
    CHECK_EQ(sr_wait_ready(ring, slot, 0, &found), -ETIMEDOUT);

    CHECK_OK(sr_claim(ring, 1, 0, &found, &range, &claimed));
    CHECK_EQ(found, slot);
    CHECK_EQ(range, SR_WHOLE);
    CHECK_EQ(claimed, gen);
    CHECK_EQ(state_of(ring, slot), SR_CLAIMED);
    CHECK_EQ(owner_of(ring, slot), 2);
    CHECK(memcmp(sr_task_of(ring, slot), &task, sizeof task) == 0);
    CHECK(strcmp(sr_task_area(ring, slot), "indices") == 0);
    CHECK_OK(sr_publish(ring, 1, slot, gen, &in, false));
    CHECK_EQ(state_of(ring, slot), SR_READY);
    CHECK_EQ(owner_of(ring, slot), 0);

    CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found));
    CHECK_EQ(found, slot);
    CHECK_OK(sr_take(ring, SR_CONSUMER, slot, &taken, &out));
    CHECK_EQ(taken, gen);
    CHECK(memcmp(&in, &out, sizeof in) == 0);
    CHECK_EQ(state_of(ring, slot), SR_LEASED);
    CHECK_EQ(owner_of(ring, slot), 1);
    CHECK_EQ(sr_circulating(ring, 9), 1);
    CHECK_OK(sr_release(ring, slot, gen));
    CHECK_EQ(state_of(ring, slot), SR_FREE);
    CHECK_EQ(sr_circulating(ring, 9), 2);
}

/* ---- operations that a state does not allow ---- */

/* The operations that are tried in each state. */
enum verb { DISPATCH, CANCEL, PUBLISH, ABORT, TAKE, RELEASE, DISCARD, UNPIN, N_VERBS };

static int try(sr_ring *ring, enum verb verb, uint64_t gen)
{
    sr_task task = {.kind = SR_TASK_NEXT};
    sr_result result = {0};
    uint64_t g;
    switch (verb) {
    case DISPATCH: return sr_dispatch(ring, 0, &task, &g);
    case CANCEL: return sr_cancel(ring, 0, gen);
    case PUBLISH: return sr_publish(ring, 1, 0, gen, &result, false);
    case ABORT: return sr_abort(ring, 1, 0, gen);
    case TAKE: return sr_take(ring, SR_CONSUMER, 0, &g, &result);
    case RELEASE: return sr_release(ring, 0, gen);
    case DISCARD: return sr_discard(ring, 0);
    case UNPIN: return sr_unpin(ring, 1, 0, gen);
    default: return -EINVAL;
    }
}

TEST(each_operation_works_only_in_its_state)
{
    static const int expected[][N_VERBS] = {
        /*              DISPATCH CANCEL  PUBLISH   ABORT     TAKE    RELEASE   DISCARD  UNPIN */
        [SR_FREE]    = {0,       -EBUSY, -ESTALE, -ESTALE, -EBUSY, -ESTALE, -EBUSY, -ESTALE},
        [SR_TASK]    = {-EBUSY,  0,      -ESTALE, -ESTALE, -EBUSY, -ESTALE, -EBUSY, -ESTALE},
        [SR_CLAIMED] = {-EBUSY,  -EBUSY, 0,       0,       -EBUSY, -ESTALE, -EBUSY, -ESTALE},
        [SR_READY]   = {-EBUSY,  -EBUSY, -ESTALE, -ESTALE, 0,      -ESTALE, 0,      -ESTALE},
        [SR_LEASED]  = {-EBUSY,  -EBUSY, -ESTALE, -ESTALE, -EBUSY, 0,       -EBUSY, -ESTALE},
        [SR_PARKED]  = {-EBUSY,  -EBUSY, -ESTALE, -ESTALE, -EBUSY, -ESTALE, -EBUSY, 0},
        [SR_BROADCAST] = {-EBUSY, -EBUSY, -ESTALE, -ESTALE, -EBUSY, 0,       -EBUSY, -ESTALE},
    };
    static const unsigned states[] = {SR_FREE, SR_TASK, SR_CLAIMED, SR_READY, SR_LEASED, SR_PARKED,
                                      SR_BROADCAST};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        for (enum verb verb = 0; verb < N_VERBS; verb++) {
            sr_ring *ring = make_ring(1, 3, 0);
            uint64_t gen = bring_to(ring, 0, states[i], 1, false);
            uint64_t word = sr_load_acquire(&ring->slots[0].state);
            int rc = try(ring, verb, gen);
            if (rc != expected[states[i]][verb])
                fprintf(stderr, "state %u, verb %d\n", states[i], verb);
            CHECK_EQ(rc, expected[states[i]][verb]);
            if (rc != 0)
                CHECK_EQ(sr_load_acquire(&ring->slots[0].state), word);
            sr_destroy(ring);
        }
    }
}

TEST(an_operation_with_another_generation_is_stale)
{
    static const struct {
        unsigned state;
        enum verb verb;
    } cases[] = {{SR_TASK, CANCEL}, {SR_CLAIMED, PUBLISH}, {SR_CLAIMED, ABORT}, {SR_LEASED, RELEASE},
                 {SR_PARKED, UNPIN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_ring *ring = make_ring(1, 3, 0);
        uint64_t gen = bring_to(ring, 0, cases[i].state, 1, false);
        CHECK_EQ(try(ring, cases[i].verb, gen - 1), -ESTALE);
        CHECK_EQ(try(ring, cases[i].verb, gen + 1), -ESTALE);
        CHECK_OK(try(ring, cases[i].verb, gen));
        sr_destroy(ring);
    }
}

TEST(an_operation_of_another_participant_is_stale)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint64_t gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK_EQ(publish(ring, 2, 0, gen, false), -ESTALE);
    CHECK_EQ(sr_abort(ring, 2, 0, gen), -ESTALE);
    CHECK_EQ(sr_rewind(ring, 2, 0, gen), -ESTALE);
    CHECK_OK(publish(ring, 1, 0, gen, true));
    CHECK_EQ(sr_unpin(ring, 2, 0, gen), -ESTALE);
    CHECK_OK(sr_unpin(ring, 1, 0, gen));
}

TEST(numbers_out_of_range_are_refused)
{
    sr_ring *ring SCOPED = make_ring(2, 3, 0);
    uint32_t slot, range;
    uint64_t gen;
    sr_result result = {0};
    sr_task task = {.n_ranges = SR_MAX_RANGES + 1};
    CHECK_EQ(sr_dispatch(ring, 0, &task, &gen), -EINVAL);
    task = (sr_task){.addressee = 4};
    CHECK_EQ(sr_dispatch(ring, 0, &task, &gen), -EINVAL);
    task.addressee = 3;
    CHECK_EQ(sr_dispatch(ring, 2, &task, &gen), -EINVAL);
    CHECK_EQ(sr_cancel(ring, 2, 0), -EINVAL);
    CHECK_EQ(sr_take(ring, SR_CONSUMER, 2, &gen, &result), -EINVAL);
    CHECK_EQ(sr_take(ring, 3, 0, &gen, &result), -EINVAL);
    CHECK_EQ(sr_release(ring, 2, 0), -EINVAL);
    CHECK_EQ(sr_discard(ring, 2), -EINVAL);
    CHECK_EQ(sr_wait_ready(ring, 2, 0, &slot), -EINVAL);
    CHECK_EQ(sr_claim(ring, 3, 0, &slot, &range, &gen), -EINVAL);
    CHECK_EQ(sr_publish(ring, 1, 2, 0, &result, false), -EINVAL);
    CHECK_EQ(sr_abort(ring, 1, 2, 0), -EINVAL);
    CHECK_EQ(sr_unpin(ring, 1, 2, 0), -EINVAL);
    CHECK_EQ(sr_rewind(ring, 1, 2, 0), -EINVAL);
    CHECK_EQ(sr_recover(ring, 3), -EINVAL);
    CHECK_EQ(sr_claim_free(ring, 1, 0, &slot, &gen), -EINVAL); /* not a queue segment */
    CHECK(sr_result_of(ring, 2, SR_WHOLE) == NULL && sr_result_of(ring, 0, SR_MAX_RANGES) == NULL);
}

TEST(a_dispatch_into_a_busy_slot_changes_nothing)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint64_t gen = dispatch(ring, 0, 4, 0, 0);
    sr_task other = {.seq = 99, .seed = 1};
    CHECK_EQ(sr_dispatch(ring, 0, &other, NULL), -EBUSY);
    CHECK_EQ(sr_task_of(ring, 0)->seq, 4);
    CHECK_EQ(sr_cancel(ring, 0, gen), 0);
}

RUN_TESTS(20)
