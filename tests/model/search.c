/* search.c - visits every reachable state once, breadth first, so a violation is shown with a shortest path to it.
 *
 * A state is a tuple of numbers, one per component (the books with header and participants; each slot; each
 * participant's stack). A number identifies the component's bytes in a table that stores each value once. Hashes only
 * speed up the search: two states are equal only if all their bytes are. Afterwards the edges are followed backwards
 * from the ends. A state from which no end can be reached is a violation too: one of the participants rescans forever.
 * A state in which all sleep is found at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model.h"

enum { COMPONENTS = 1 + MAX_SLOTS + MAX_PARTICIPANTS };
enum act { RUN, KILL, END_WAIT, SIGNAL };

struct table {
    uint32_t *heads, *at, *length, n, room, mask;
    uint8_t *bytes;
    size_t used, size;
};
struct node {
    uint32_t id[COMPONENTS], parent;
    uint16_t step; /* act | participant | answer */
};

static struct table tables[COMPONENTS];
static struct node *nodes;
static struct entry {
    uint32_t node, hash; /* most nodes with another hash need not be looked at */
} *table;
static uint32_t *edges_from, *edges_to, n_nodes, room_nodes, loaded[COMPONENTS];
static size_t n_edges, room_edges;
static uint32_t n_components, n_slots, n_participants, ends;
static bool failed;

static void *grown(void *old, size_t bytes)
{
    void *p = realloc(old, bytes);
    if (!p) {
        fprintf(stderr, "out of memory at %u states\n", n_nodes);
        exit(2);
    }
    return p;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* In two halves, so that the processor need not wait for one multiplication before it begins the next. */
static uint64_t hash_of(const void *bytes, size_t length)
{
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15), other = UINT64_C(0xc4ceb9fe1a85ec53);
    const uint8_t *p = bytes;
    uint64_t one = length, two = other, w[4];
    for (; length >= sizeof w; length -= sizeof w, p += sizeof w) {
        memcpy(w, p, sizeof w);
        one = mix(w[0] ^ odd, w[1] ^ one);
        two = mix(w[2] ^ other, w[3] ^ two);
    }
    memset(w, 0, sizeof w);
    memcpy(w, p, length);
    return mix(one ^ w[0] ^ w[1] ^ odd, two ^ w[2] ^ w[3]);
}

/* Return the number of these bytes in the table. */
static uint32_t intern(struct table *t, const uint8_t *bytes, uint32_t length)
{
    if (t->n + 1 >= t->room / 2) {
        t->room = t->room ? 2 * t->room : 1024;
        t->at = grown(t->at, t->room * sizeof *t->at);
        t->length = grown(t->length, t->room * sizeof *t->length);
        t->heads = grown(t->heads, t->room * sizeof *t->heads);
        t->mask = t->room - 1;
        memset(t->heads, 0xff, t->room * sizeof *t->heads);
        for (uint32_t i = 0; i < t->n; i++) {
            uint32_t h = (uint32_t)hash_of(t->bytes + (size_t)t->at[i] * 8, t->length[i]) & t->mask;
            while (t->heads[h] != UINT32_MAX)
                h = (h + 1) & t->mask;
            t->heads[h] = i;
        }
    }
    uint32_t h = (uint32_t)hash_of(bytes, length) & t->mask;
    for (; t->heads[h] != UINT32_MAX; h = (h + 1) & t->mask) {
        uint32_t i = t->heads[h];
        if (t->length[i] == length && memcmp(t->bytes + (size_t)t->at[i] * 8, bytes, length) == 0)
            return i;
    }
    if (t->used + length + 8 > t->size)
        t->bytes = grown(t->bytes, t->size = t->size ? 2 * t->size : 1 << 20);
    memcpy(t->bytes + t->used, bytes, length);
    t->at[t->n] = (uint32_t)(t->used / 8);
    t->length[t->n] = length;
    t->used += (length + 7u) & ~7u;
    t->heads[h] = t->n;
    return t->n++;
}

static void load(uint32_t c, uint32_t id)
{
    struct region r[8];
    if (loaded[c] == id)
        return;
    loaded[c] = id;
    const uint8_t *from = tables[c].bytes + (size_t)tables[c].at[id] * 8;
    if (c > n_slots) {
        machine_load_participant(c - n_slots - 1, from, tables[c].length[id]);
        return;
    }
    for (uint32_t i = 0, n = machine_regions(c, r); i < n; from += r[i++].length)
        memcpy(r[i].at, from, r[i].length);
}

static uint32_t save(uint32_t c)
{
    static struct saved s;
    struct region r[8];
    const struct table *t = &tables[c];
    const uint8_t *was = loaded[c] < t->n ? t->bytes + (size_t)t->at[loaded[c]] * 8 : NULL;
    if (c > n_slots) {
        machine_save_participant(c - n_slots - 1, &s);
        if (was && t->length[loaded[c]] == s.length && memcmp(was, s.bytes, s.length) == 0)
            return loaded[c];
    } else {
        uint32_t n = machine_regions(c, r), same = 0;
        for (; was && same < n && memcmp(was, r[same].at, r[same].length) == 0; same++)
            was += r[same].length;
        if (same == n) /* most steps change few components */
            return loaded[c];
        s.length = 0;
        for (uint32_t i = 0; i < n; s.length += r[i++].length)
            memcpy(s.bytes + s.length, r[i].at, r[i].length);
    }
    return loaded[c] = intern(&tables[c], s.bytes, s.length);
}

/* The entry for a new node: entries are found by the hash, and the next one is taken if one is occupied. */
static uint32_t free_entry(uint32_t hash)
{
    uint32_t at = hash & (room_nodes - 1);
    while (table[at].node != UINT32_MAX)
        at = (at + 1) & (room_nodes - 1);
    return at;
}

static void make_room(void)
{
    struct entry *old = table;
    uint32_t had = room_nodes;
    room_nodes = had ? 2 * had : 1 << 16;
    nodes = grown(nodes, room_nodes / 2 * sizeof *nodes);
    table = grown(NULL, room_nodes * sizeof *table);
    memset(table, 0xff, room_nodes * sizeof *table);
    for (uint32_t i = 0; i < had; i++)
        if (old[i].node != UINT32_MAX)
            table[free_entry(old[i].hash)] = old[i];
    free(old);
}

/* Add the state that is in memory, unless it is known, and return its number. */
static uint32_t enter(const uint32_t *id, uint32_t parent, uint16_t step)
{
    if (n_nodes + 1 >= room_nodes / 2)
        make_room();
    uint32_t hash = (uint32_t)hash_of(id, sizeof nodes->id), at = hash & (room_nodes - 1);
    for (; table[at].node != UINT32_MAX; at = (at + 1) & (room_nodes - 1))
        if (table[at].hash == hash && memcmp(nodes[table[at].node].id, id, sizeof nodes->id) == 0)
            return table[at].node;
    memcpy(nodes[n_nodes].id, id, sizeof nodes->id);
    nodes[n_nodes].parent = parent;
    nodes[n_nodes].step = step;
    table[at] = (struct entry){n_nodes, hash};
    return n_nodes++;
}

static void add_edge(uint32_t from, uint32_t to)
{
    if (n_edges == room_edges) {
        room_edges = room_edges ? 2 * room_edges : 1 << 16;
        edges_from = grown(edges_from, room_edges * sizeof *edges_from);
        edges_to = grown(edges_to, room_edges * sizeof *edges_to);
    }
    edges_from[n_edges] = from;
    edges_to[n_edges++] = to;
}

static void go_to(uint32_t node)
{
    for (uint32_t c = 0; c < n_components; c++)
        load(c, nodes[node].id[c]);
}

static void act(uint16_t step)
{
    uint32_t participant = step >> 4 & 7;
    spawned = 0;
    switch ((enum act)(step & 15)) {
    case RUN:
        books.answer[participant] = (uint8_t)(step >> 8);
        machine_run(participant);
        break;
    case KILL:
        books.deaths -= participant != SR_CONSUMER || (plan->flags & SR_SEG_QUEUE) || books.life[0] != DEAD;
        machine_kill(participant);
        break;
    case END_WAIT:
        machine_end_wait(participant, ETIMEDOUT);
        break;
    case SIGNAL:
        books.signals--;
        machine_end_wait(participant, EINTR);
        break;
    default:
        break;
    }
    machine_settle();
}

/* Write all steps that are possible from the state in memory; return their count. */
static uint32_t steps_from_here(uint16_t *out)
{
    uint32_t n = 0;
    bool unreaped = false, loader_mode = !(plan->flags & SR_SEG_QUEUE);
    bool orphans = loader_mode && books.life[SR_CONSUMER] == DEAD && !plan->readers;
    for (uint32_t p = 0; p < n_participants; p++)
        unreaped |= books.unreaped[p] && (!plan->caches || cache_has_number(p));
    for (uint32_t p = 0; p < n_participants; p++) {
        uint16_t who = (uint16_t)(p << 4);
        enum life life = books.life[p];
        if (life == ENDED || life == DEAD || life == NOBODY)
            continue;
        if (life == CHOOSES)
            for (uint32_t i = 0; i < books.options[p]; i++)
                out[n++] = (uint16_t)(RUN | who | i << 8);
        else if (machine_may_run(p))
            out[n++] = RUN | who;
        if (life == SLEEPS && books.bounded[p] && unreaped)
            out[n++] = END_WAIT | who;
        if (life == SLEEPS && books.signals && p != SR_CONSUMER)
            out[n++] = SIGNAL | who;
        /* A worker whose consumer is dead may end at any moment. Participant 0 of a queue segment only recovers. */
        if (orphans ? p != SR_CONSUMER : books.deaths && (p != SR_CONSUMER || (loader_mode && plan->consumer_dies)))
            out[n++] = KILL | who;
    }
    return n;
}

/* Whether nothing happens any more unless a participant dies or gets a signal. Workers end if the consumer dies. */
static bool stuck(const uint16_t *steps, uint32_t n)
{
    bool deaths_help = !(plan->flags & SR_SEG_QUEUE) && books.life[SR_CONSUMER] == DEAD && !plan->readers;
    for (uint32_t i = 0; i < n; i++) {
        enum act act = steps[i] & 15;
        if (act == RUN || act == END_WAIT || (act == KILL && deaths_help))
            return false;
    }
    return true;
}

static bool at_an_end(void)
{
    for (uint32_t p = 0; p < n_participants; p++)
        if (books.life[p] != ENDED && books.life[p] != DEAD && books.life[p] != NOBODY &&
            !(books.ended && !plan->closes && p != SR_CONSUMER && books.life[p] == SLEEPS))
            return false;
    return true;
}

static const char *label(const void *address)
{
    static char text[64];
    size_t slot = (size_t)((const char *)address - (const char *)ring->slots);
    size_t participant = (size_t)((const char *)address - (const char *)ring->participants);
    if (slot < sizeof(sr_slot) * plan->slots)
        snprintf(text, sizeof text, "slot %zu +%zu", slot / sizeof(sr_slot), slot % sizeof(sr_slot));
    else if (participant < sizeof(sr_participant) * n_participants)
        snprintf(text, sizeof text, "participant %zu +%zu", participant / sizeof(sr_participant),
                 participant % sizeof(sr_participant));
    else if (plan->caches)
        snprintf(text, sizeof text, "cache +%zu", (size_t)((const char *)address - ring->base) - ring->data_off);
    else
        snprintf(text, sizeof text, "%s +%zu", slot < sizeof(sr_slot) * 8 ? "payload" : "header",
                 (size_t)((const char *)address - ring->base) % SR_PAGE);
    return text;
}

/* csrc/layout.h has the offsets. `addr2line -ifpe build/model/model ADDRESS` resolves the code's address. */
static void show(const char *what, const void *address, const void *code, uint64_t value)
{
    printf("    participant %u  %-11s %-16s %#llx  (%p)\n", self, what, label(address), (unsigned long long)value,
           code);
}

static void show_way_to(uint32_t node, uint16_t last)
{
    uint32_t length = 0, at = node;
    for (; at != 0; at = nodes[at].parent)
        length++;
    uint16_t *steps = grown(NULL, (length + 1) * sizeof *steps);
    steps[length] = last;
    at = node;
    for (uint32_t i = length; i > 0; at = nodes[at].parent)
        steps[--i] = nodes[at].step;
    printf("  the way there, %u steps:\n", length + (last != UINT16_MAX));
    go_to(0);
    step_seen = show;
    for (uint32_t i = 0; i < length + (last != UINT16_MAX); i++) {
        static const char *const names[] = {[KILL] = "dies", [END_WAIT] = "times out", [SIGNAL] = "gets a signal"};
        if ((steps[i] & 15) != RUN)
            printf("    participant %u  %s\n", steps[i] >> 4 & 7, names[steps[i] & 15]);
        act(steps[i]);
    }
    step_seen = NULL;
    memset(loaded, 0xff, sizeof loaded);
    free(steps);
    failed = true;
}

/* Check that an end can be reached from every state. */
static void look_back(const uint8_t *is_end)
{
    uint32_t *first = calloc((size_t)n_nodes + 2, sizeof *first), *back = grown(NULL, (n_edges + 1) * sizeof *back);
    uint32_t *queue = grown(NULL, ((size_t)n_nodes + 1) * sizeof *queue), n = 0;
    uint8_t *seen = calloc(n_nodes + 1, 1);
    for (size_t e = 0; e < n_edges; e++)
        first[edges_to[e] + 2]++;
    for (uint32_t i = 2; i < n_nodes + 2; i++)
        first[i] += first[i - 1];
    for (size_t e = 0; e < n_edges; e++)
        back[first[edges_to[e] + 1]++] = edges_from[e];
    for (uint32_t i = 0; i < n_nodes; i++)
        if (is_end[i])
            seen[i] = 1, queue[n++] = i;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t e = first[queue[i]]; e < first[queue[i] + 1]; e++)
            if (!seen[back[e]])
                seen[back[e]] = 1, queue[n++] = back[e];
    for (uint32_t i = 0; i < n_nodes && !failed; i++)
        if (!seen[i]) {
            printf("  VIOLATED: from here on it can never end: something is lost\n");
            show_way_to(i, UINT16_MAX);
        }
    free(first), free(back), free(queue), free(seen);
}

bool explore(const struct scenario *scenario)
{
    uint8_t *is_end = NULL;
    uint32_t room_ends = 0;
    uint16_t steps[64];
    machine_begin(scenario);
    n_slots = scenario->slots;
    n_participants = scenario->workers + 1;
    n_components = 1 + n_slots + n_participants;
    for (uint32_t c = 0; c < COMPONENTS; c++)
        tables[c].n = 0, tables[c].used = 0, tables[c].room = 0;
    n_nodes = room_nodes = ends = 0;
    memset(loaded, 0xff, sizeof loaded);
    n_edges = 0;
    failed = violation = false;
    uint32_t id[COMPONENTS] = {0};
    for (uint32_t c = 0; c < n_components; c++)
        id[c] = save(c);
    enter(id, 0, 0);
    for (uint32_t at = 0; at < n_nodes && !failed; at++) {
        go_to(at);
        if (at >= room_ends)
            is_end = grown(is_end, room_ends = room_ends ? 2 * room_ends : 1 << 16);
        is_end[at] = at_an_end();
        ends += is_end[at];
        uint32_t n = steps_from_here(steps);
        if (!is_end[at] && stuck(steps, n)) { /* look_back would find it too, after all other states */
            printf("  VIOLATED: all participants wait\n");
            show_way_to(at, UINT16_MAX);
        }
        for (uint32_t i = 0; i < n && !failed; i++) {
            uint32_t participant = steps[i] >> 4 & 7;
            memcpy(id, nodes[at].id, sizeof id);
            go_to(at);
            act(steps[i]);
            if (violation) {
                memset(loaded, 0xff, sizeof loaded);
                violation = false;
                show_way_to(at, steps[i]);
                break;
            }
            for (uint32_t c = 0; c <= n_slots; c++)
                id[c] = save(c);
            for (uint32_t p = 0; p < n_participants; p++)
                if (p == participant || (spawned & 1u << p))
                    id[1 + n_slots + p] = save(1 + n_slots + p);
            add_edge(at, enter(id, at, steps[i]));
        }
    }
    if (!failed)
        look_back(is_end);
    uint32_t kinds = 0;
    for (uint32_t p = 0; p < n_participants; p++)
        kinds += tables[1 + n_slots + p].n;
    printf("%s  %s: %u states, %zu steps, %u ends (%u kinds of stack, %u of header)\n", failed ? "FAIL" : "ok  ",
           scenario->name, n_nodes, n_edges, ends, kinds, tables[0].n);
    fflush(stdout);
    free(is_end);
    return !failed;
}

/* Wait for one of the child processes, each of which explores a scenario. Return false if it has failed. */
static bool wait_for_one(void)
{
    int status = 0;
    pid_t pid = wait(&status);
    if (pid > 0 && WIFSIGNALED(status))
        printf("FAIL  process %d: signal %d\n", (int)pid, WTERMSIG(status));
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Usage: model [full] [NAME...]. It explores one scenario per processor concurrently. */
int main(int argc, char **argv)
{
    bool full = argc > 1 && strcmp(argv[1], "full") == 0, good = true;
    uint32_t run = 0, running = 0;
    uint32_t most = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    for (size_t i = 0; i < n_scenarios + (full ? n_full_scenarios : 0); i++) {
        const struct scenario *s = i < n_scenarios ? &scenarios[i] : &full_scenarios[i - n_scenarios];
        bool wanted = argc == 1 + full;
        for (int a = 1 + full; a < argc; a++)
            wanted |= strcmp(argv[a], s->name) == 0;
        if (!wanted)
            continue;
        run++;
        if (running == most) {
            good = wait_for_one() && good;
            running--;
        }
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a signal that ends this program also ends its children */
            printf("== %s: %s\n", s->name, s->what);
            fflush(stdout);
            exit(explore(s) ? 0 : 1);
        }
        if (pid < 0)
            perror("fork");
        else
            running++;
        good = good && pid > 0;
    }
    for (; running; running--)
        good = wait_for_one() && good;
    bool found = run > 0 && run >= (uint32_t)(argc - 1 - full);
    if (!found)
        printf("FAIL  a name is no scenario's\n");
    return !(good && found);
}
