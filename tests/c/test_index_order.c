/* Computed orders: permutations, draws, and any part of them. */
#include "check.h"
#include "index_order.h"

static sr_index_order shuffled(uint64_t n, uint64_t key)
{
    sr_index_order order = {.kind = SR_ORDER_SHUFFLED, .n = n, .length = n};
    sr_order_key(&order, key);
    return order;
}

TEST(a_shuffle_of_any_length_has_each_index_once)
{
    static int64_t indices[3000];
    static bool seen[3000];
    for (uint64_t n = 1; n <= 3000; n += n < 300 ? 1 : 97) {
        sr_index_order order = shuffled(n, n * 7919);
        sr_order_write(&order, 0, 1, n, indices);
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            CHECK_OP(indices[i], >=, 0);
            CHECK_OP(indices[i], <, n);
            CHECK(!seen[indices[i]]);
            seen[indices[i]] = true;
        }
    }
}

TEST(the_longest_shuffles_stay_below_their_length)
{
    const uint64_t lengths[] = {(1ull << 62) - 1, 1ull << 62, (1ull << 62) + 1, INT64_MAX};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        uint64_t n = lengths[k];
        sr_index_order order = shuffled(n, 3);
        CHECK((unsigned __int128)order.rows * order.columns >= n);
        int64_t indices[1000];
        sr_order_write(&order, n - 500, 1, 1000, indices); /* its last positions, then its first */
        for (int i = 0; i < 1000; i++) {
            CHECK_OP(indices[i], >=, 0);
            CHECK_OP(indices[i], <, n);
            for (int j = 0; j < i; j++)
                CHECK(indices[i] != indices[j]);
        }
    }
}

TEST(a_part_equals_that_part_of_the_whole)
{
    const double bounds[] = {0.25, 0.25, 0.5, 1};
    const int64_t stored[] = {4, 2, 0, 3, 1};
    sr_index_order orders[] = {
        {.kind = SR_ORDER_ASCENDING, .n = 7, .length = 7},
        {.kind = SR_ORDER_STORED, .n = 5, .length = 5, .stored = stored},
        shuffled(1000, 5),
        {.kind = SR_ORDER_DRAWN, .n = 90, .length = 300},
        {.kind = SR_ORDER_DRAWN, .n = 4, .length = 70, .bounds = bounds},
    };
    static int64_t whole[1000], part[50];
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        sr_index_order *order = &orders[k];
        if (order->kind == SR_ORDER_DRAWN)
            sr_order_key(order, 9);
        sr_order_write(order, 0, 1, order->length, whole);
        for (uint64_t first = 0; first < 2 * order->length; first += 3)
            for (uint64_t step = 0; step < 2 * order->length; step += 1 + step / 3) {
                sr_order_write(order, first, step, 50, part);
                for (uint64_t i = 0; i < 50; i++)
                    CHECK_EQ(part[i], whole[(first + i * step) % order->length]);
            }
    }
}

TEST(draws_follow_the_weights_and_an_index_without_weight_is_never_drawn)
{
    const double bounds[] = {0, 0.25, 0.25, 1, 1}; /* weights 0, 1, 0, 3, 0 */
    sr_index_order order = {.kind = SR_ORDER_DRAWN, .n = 5, .length = 40000, .bounds = bounds};
    static int64_t indices[40000];
    int64_t counts[5] = {0};
    sr_order_key(&order, 1);
    sr_order_write(&order, 0, 1, 40000, indices);
    for (int i = 0; i < 40000; i++)
        counts[indices[i]]++;
    CHECK_EQ(counts[0] + counts[2] + counts[4], 0);
    CHECK_OP(counts[1], >, 9600); /* 10,000 expected, with a standard deviation of 87 */
    CHECK_OP(counts[1], <, 10400);
}

RUN_TESTS(60)
