/* The loop of replay.py, compiled: one stream, segments of fixed size, no special requests.

   pools.py has the rules and their sources; this is a twin of its BlockPools, and a test holds both equal on
   random events. Sizes are bytes. Blocks are indices of an array, so a segment's blocks are linked by numbers;
   NONE stands for no block. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;

/* Digest of this file, which the build gives: compiled_replay.py uses no library of another source. */
const char autofit_replay_source[] = SOURCE_SHA256;

enum { NONE = -1, FREED = -2 };
enum { COMPLETED = 0, STOPPED = 1, REFUSED = 2 }; /* REFUSED: replay.py has to say what is wrong */

/* As in settings.py, which passes them. */
typedef struct {
    i64 block_bytes, small_request_bytes, small_segment_bytes;
    i64 exact_segment_request_bytes, large_segment_bytes, segment_step_bytes;
    i64 limit_bytes, stop_above_bytes;
} Settings;

typedef struct {
    i64 peak_allocated_bytes, peak_reserved_bytes, peak_allocated_position;
    i64 num_alloc_retries, failed_position;
} Result;

typedef struct {
    i64 address, size;
    int32_t prev, next;
    int8_t is_cached, is_small;
} Block;

typedef struct {
    i64 size, address;
    int32_t block;
} Entry;

/* Free blocks of a size class, ascending by size and address. */
typedef struct {
    Entry *entries;
    i64 length;
    i64 min_remainder_bytes;
} Pool;

typedef struct {
    i64 start, end;
} Hole;

typedef struct {
    const Settings *settings;
    Block *blocks;
    int32_t *unused; /* indices of blocks that were merged into others */
    i64 num_blocks, num_unused;
    Pool pools[2]; /* large, small */
    Hole *holes;   /* free ranges of addresses, ascending */
    i64 num_holes;
    i64 reserved_bytes, peak_reserved_bytes, num_retries;
} Allocator;

static const i64 END_OF_ADDRESSES = (i64)1 << 62;

static i64 rounded_up(i64 value, i64 step) { return (value + step - 1) / step * step; }

/* Index of the first entry that is at least (size, address). */
static i64 place_of(const Pool *pool, i64 size, i64 address) {
    i64 low = 0, high = pool->length;
    while (low < high) {
        i64 middle = (low + high) / 2;
        const Entry *entry = &pool->entries[middle];
        if (entry->size < size || (entry->size == size && entry->address < address)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void insert(Allocator *a, int32_t block) {
    const Block *b = &a->blocks[block];
    Pool *pool = &a->pools[(int)b->is_small];
    i64 place = place_of(pool, b->size, b->address);
    memmove(&pool->entries[place + 1], &pool->entries[place], (size_t)(pool->length - place) * sizeof(Entry));
    pool->entries[place] = (Entry){b->size, b->address, block};
    pool->length++;
}

static void delete_at(Pool *pool, i64 place) {
    pool->length--;
    memmove(&pool->entries[place], &pool->entries[place + 1], (size_t)(pool->length - place) * sizeof(Entry));
}

static void delete_block(Allocator *a, int32_t block) {
    const Block *b = &a->blocks[block];
    Pool *pool = &a->pools[(int)b->is_small];
    delete_at(pool, place_of(pool, b->size, b->address));
}

static int32_t new_block(Allocator *a) {
    return a->num_unused ? a->unused[--a->num_unused] : (int32_t)a->num_blocks++;
}

/* Takes the lowest free range of addresses. */
static i64 reserve_addresses(Allocator *a, i64 num_bytes) {
    for (i64 index = 0;; index++) {
        Hole *hole = &a->holes[index];
        if (hole->start + num_bytes > hole->end) continue;
        i64 address = hole->start;
        hole->start += num_bytes;
        if (hole->start == hole->end) {
            a->num_holes--;
            memmove(hole, hole + 1, (size_t)(a->num_holes - index) * sizeof(Hole));
        }
        return address;
    }
}

static void release_addresses(Allocator *a, i64 address, i64 num_bytes) {
    i64 start = address, end = address + num_bytes, first = 0;
    while (first < a->num_holes && a->holes[first].start < address) first++;
    i64 last = first;
    if (first > 0 && a->holes[first - 1].end == start) start = a->holes[--first].start;
    if (last < a->num_holes && a->holes[last].start == end) end = a->holes[last++].end;
    memmove(&a->holes[first + 1], &a->holes[last], (size_t)(a->num_holes - last) * sizeof(Hole));
    a->num_holes += 1 - (last - first);
    a->holes[first] = (Hole){start, end};
}

static i64 segment_bytes(const Settings *s, i64 size) {
    if (size <= s->small_request_bytes) return s->small_segment_bytes;
    if (size < s->exact_segment_request_bytes) return s->large_segment_bytes;
    return rounded_up(size, s->segment_step_bytes);
}

/* A new segment's block; NONE if the segment would exceed the limit. */
static int32_t grow(Allocator *a, i64 size, int is_small) {
    i64 num_bytes = segment_bytes(a->settings, size);
    if (a->reserved_bytes + num_bytes > a->settings->limit_bytes) return NONE;
    int32_t block = new_block(a);
    a->blocks[block] = (Block){reserve_addresses(a, num_bytes), num_bytes, NONE, NONE, 1, (int8_t)is_small};
    a->reserved_bytes += num_bytes;
    if (a->reserved_bytes > a->peak_reserved_bytes) a->peak_reserved_bytes = a->reserved_bytes;
    return block;
}

/* Releases the segments that are cached whole. */
static void release_cached(Allocator *a) {
    for (int kind = 0; kind < 2; kind++) {
        Pool *pool = &a->pools[kind];
        i64 num_kept = 0;
        for (i64 index = 0; index < pool->length; index++) {
            Entry entry = pool->entries[index];
            const Block *b = &a->blocks[entry.block];
            if (b->prev == NONE && b->next == NONE) {
                release_addresses(a, b->address, b->size);
                a->reserved_bytes -= b->size;
                a->unused[a->num_unused++] = entry.block;
            } else {
                pool->entries[num_kept++] = entry;
            }
        }
        pool->length = num_kept;
    }
}

/* Hands out the best-fitting block; NONE if memory is short. */
static int32_t take(Allocator *a, i64 size, int is_small) {
    Pool *pool = &a->pools[is_small];
    i64 place = place_of(pool, size, 0);
    int32_t block;
    if (place < pool->length) {
        block = pool->entries[place].block;
        delete_at(pool, place);
    } else {
        block = grow(a, size, is_small);
        if (block == NONE) {
            release_cached(a);
            a->num_retries++;
            block = grow(a, size, is_small);
            if (block == NONE) return NONE;
        }
    }
    i64 left_bytes = a->blocks[block].size - size;
    if (left_bytes >= pool->min_remainder_bytes) {
        int32_t rest = new_block(a);
        Block *b = &a->blocks[block];
        a->blocks[rest] = (Block){b->address + size, left_bytes, block, b->next, 1, (int8_t)is_small};
        if (b->next != NONE) a->blocks[b->next].prev = rest;
        b->next = rest;
        b->size = size;
        insert(a, rest);
    }
    a->blocks[block].is_cached = 0;
    return block;
}

/* Appends a block's successor to it. */
static void absorb_next(Allocator *a, int32_t block) {
    Block *b = &a->blocks[block];
    int32_t gone = b->next;
    b->size += a->blocks[gone].size;
    b->next = a->blocks[gone].next;
    if (b->next != NONE) a->blocks[b->next].prev = block;
    a->unused[a->num_unused++] = gone;
}

/* Frees a block: merges it with its cached neighbours, and caches it. */
static void give(Allocator *a, int32_t block) {
    int32_t prev = a->blocks[block].prev, next = a->blocks[block].next;
    if (next != NONE && a->blocks[next].is_cached) {
        delete_block(a, next);
        absorb_next(a, block);
    }
    if (prev != NONE && a->blocks[prev].is_cached) {
        delete_block(a, prev);
        absorb_next(a, prev);
        block = prev;
    }
    a->blocks[block].is_cached = 1;
    insert(a, block);
}

static int run(Allocator *a, const i64 *events, i64 num_events, const i64 *sizes, i64 num_requests,
               int32_t *block_of, Result *result) {
    i64 allocated_bytes = 0;
    for (i64 position = 0; position < num_events; position++) {
        i64 event = events[position];
        if ((event < 0 ? ~event : event) >= num_requests) return REFUSED;
        if (event < 0) {
            int32_t block = block_of[~event];
            if (block == NONE && !sizes[~event]) continue;
            if (block < 0) return REFUSED;
            allocated_bytes -= a->blocks[block].size;
            give(a, block);
            block_of[~event] = FREED;
            continue;
        }
        i64 size = sizes[event];
        if (!size) continue;
        int32_t block = take(a, size, size <= a->settings->small_request_bytes);
        if (block == NONE) {
            result->failed_position = position;
            return STOPPED;
        }
        block_of[event] = block;
        allocated_bytes += a->blocks[block].size;
        if (allocated_bytes > result->peak_allocated_bytes) {
            result->peak_allocated_bytes = allocated_bytes;
            result->peak_allocated_position = position;
        }
        if (a->reserved_bytes > a->settings->stop_above_bytes) {
            result->failed_position = position;
            return STOPPED;
        }
    }
    return COMPLETED;
}

/* Replays events, `i` for an allocation of sizes[i] bytes and `~i` for its free, and fills `result`.

   sizes are rounded as the allocator rounds them, and 0 where no block is made. Returns COMPLETED or STOPPED,
   or REFUSED if an event frees what is not allocated, or there is no memory for the replay itself. */
int autofit_replay(const i64 *events, i64 num_events, const i64 *sizes, i64 num_requests,
                   const Settings *settings, Result *result) {
    /* A request adds at most two blocks: its segment, and the rest that is split off. */
    i64 capacity = 2 * num_events + 2;
    Allocator a = {.settings = settings};
    a.blocks = malloc((size_t)capacity * sizeof(Block));
    a.unused = malloc((size_t)capacity * sizeof(int32_t));
    a.holes = malloc((size_t)capacity * sizeof(Hole));
    a.pools[0].entries = malloc((size_t)capacity * sizeof(Entry));
    a.pools[1].entries = malloc((size_t)capacity * sizeof(Entry));
    int32_t *block_of = malloc((size_t)(num_requests + 1) * sizeof(int32_t));
    int ending = REFUSED;
    *result = (Result){.failed_position = -1};
    if (a.blocks && a.unused && a.holes && a.pools[0].entries && a.pools[1].entries && block_of) {
        for (i64 index = 0; index < num_requests; index++) block_of[index] = NONE;
        a.holes[0] = (Hole){0, END_OF_ADDRESSES};
        a.num_holes = 1;
        a.pools[0].min_remainder_bytes = settings->small_request_bytes + 1;
        a.pools[1].min_remainder_bytes = settings->block_bytes;
        ending = run(&a, events, num_events, sizes, num_requests, block_of, result);
        result->peak_reserved_bytes = a.peak_reserved_bytes;
        result->num_alloc_retries = a.num_retries;
    }
    free(a.blocks);
    free(a.unused);
    free(a.holes);
    free(a.pools[0].entries);
    free(a.pools[1].entries);
    free(block_of);
    return ending;
}
