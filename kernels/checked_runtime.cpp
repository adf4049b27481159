// Runs launches with every access watched: threads are fibers that a seed interleaves, at any access and at
// barriers; launches that nothing orders run at the same time. What an access does wrong is a finding.
//
// For one OS thread. The caller submits launches, each with the views of memory that it may access, and runs them; then
// all that ends, and with it what was known of earlier accesses: whatever was run happens before whatever comes.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>
#include <ucontext.h>

namespace {

typedef uint64_t u64;

enum Kind { OUT_OF_BOUNDS, WRITE_TO_CONST, MISALIGNED, UNINITIALISED, RACE, DIVERGENCE, ENDLESS };
enum { READ, WRITE, ATOMIC };
enum { STACK_BYTES = 1 << 16, GUARD_BYTES = 1 << 12, PAGE_BYTES = 1 << 10, MOST_FINDINGS = 256 };

// A thread between two barriers.
struct Actor {
    unsigned block, phase;
    unsigned short launch, thread;
};

// An access of some of eight bytes, a bit for each.
struct Access {
    Actor actor;
    unsigned char what, bytes;
};

struct Page {
    // Per eight bytes the accesses that a later one may race with, less those that another one stands for.
    std::vector<Access> accesses[PAGE_BYTES / 8];
    bool unwritten[PAGE_BYTES];
};

// What is known of each byte, whatever views hold it.
struct Shadow {
    std::unordered_map<u64, std::unique_ptr<Page>> pages;

    Page& page(u64 at) {
        std::unique_ptr<Page>& found = pages[at / PAGE_BYTES];
        if (!found) found.reset(new Page());
        return *found;
    }
    bool& unwritten(u64 at) { return page(at).unwritten[at % PAGE_BYTES]; }
};

// Memory that a launch may access, as one of its parameters: without the gaps that `mask` has a 0 for.
struct View {
    int number;
    u64 start, size;
    const unsigned char* mask;
    bool writable;

    bool holds(u64 at, u64 length) const {
        return at >= start && at + length <= start + size && !(mask && memchr(mask + (at - start), 0, length));
    }
};
enum { NO_VIEW = -1, SHARED_VIEW = -2 };

struct Finding {
    // All 8 bytes wide, read by the host as they lie.
    u64 kind, launch, block, thread, address, size, write, other_launch, other_block, other_thread, line;
    int64_t view;
};

struct Dimensions {
    unsigned x;
};
struct Position {
    Dimensions grid, block, in_grid, in_block;
};

struct Launch {
    void (*body)(const void*);
    std::vector<u64> params;
    unsigned grid, block;
    u64 before;  // a bit for each launch that ends before this one begins
    unsigned started, ended;
    std::vector<View> views;
};

struct Block;
struct Fiber {
    ucontext_t context;
    unsigned char* stack;
    Block* block;
    Position position;
    unsigned phase;
    int barrier;  // the line it waits at, or 0
    bool ended, broken;
};
struct Block {
    int launch;
    std::vector<std::unique_ptr<Fiber>> fibers;
    // What the kernel declares, when its first thread comes there; behind it lies nobody's memory.
    std::vector<unsigned char> memory;
    View shared;
    Shadow shadow;
};

Shadow device;
std::vector<Launch> launches;
std::vector<Finding> findings;
std::vector<unsigned char*> free_stacks;
std::vector<std::unique_ptr<Block>> resident;
ucontext_t scheduler;
Fiber* current;
u64 random_state, accesses, budget;
unsigned preempt_rate;

u64 random_number() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

void yield() { swapcontext(&current->context, &scheduler); }

// The thread goes no further: its access must not happen.
void stop_thread() {
    current->ended = current->broken = true;
    yield();
}

Actor actor_of(const Fiber& fiber) {
    const Position& at = fiber.position;
    return {at.in_grid.x, fiber.phase, (unsigned short)fiber.block->launch, (unsigned short)at.in_block.x};
}

bool same(const Actor& one, const Actor& other) {
    return one.launch == other.launch && one.block == other.block && one.thread == other.thread &&
           one.phase == other.phase;
}

bool ordered(const Actor& first, const Actor& second) {
    if (first.launch != second.launch) return launches[second.launch].before >> first.launch & 1;
    if (first.block != second.block) return false;
    return first.thread == second.thread || first.phase < second.phase;
}

void report(Kind kind, u64 at, u64 size, int what, const View* view, const Actor* other) {
    const Actor self = actor_of(*current);
    const int number = view ? view->number : NO_VIEW;
    for (const Finding& known : findings)
        // One for each kernel's place in memory would drown the rest.
        if (known.kind == (u64)kind && known.launch == self.launch && known.block == self.block &&
            known.thread == self.thread && known.view == number)
            return;
    if (findings.size() >= MOST_FINDINGS) return;
    Finding found = {};
    found.kind = kind;
    found.launch = self.launch;
    found.block = self.block;
    found.thread = self.thread;
    found.address = view ? at - view->start : at;
    found.size = size;
    found.write = what != READ;
    found.view = number;
    if (other) {
        found.other_launch = other->launch;
        found.other_block = other->block;
        found.other_thread = other->thread;
    }
    findings.push_back(found);
}

bool may_race(int what, int other) { return (what != READ || other != READ) && !(what == ATOMIC && other == ATOMIC); }

// Adds an access to those of its eight bytes. An earlier one that it doesn't come after is told, if the two may race.
void remember(std::vector<Access>& accesses, Access self, bool& race, Actor& other) {
    const unsigned char bytes = self.bytes;
    size_t kept = 0;
    for (Access earlier : accesses) {
        if (earlier.bytes & bytes) {
            if (!ordered(earlier.actor, self.actor)) {
                if (!race && may_race(earlier.what, self.what)) race = true, other = earlier.actor;
            } else if (self.what == WRITE || self.what == earlier.what) {
                // Whatever would race with the earlier one races with this one.
                earlier.bytes &= ~bytes;
            }
        }
        if (earlier.bytes && earlier.what == self.what && same(earlier.actor, self.actor))
            self.bytes |= earlier.bytes;
        else if (earlier.bytes)
            accesses[kept++] = earlier;
    }
    accesses.resize(kept);
    accesses.push_back(self);
}

void touch(Shadow& shadow, const View& view, u64 at, u64 size, int what) {
    // An access is aligned, so it lies in one page.
    Page& page = shadow.page(at);
    const u64 first = at % PAGE_BYTES, end = first + size;
    bool race = false, unwritten = false;
    Actor other = {};
    for (u64 byte = first; byte < end; byte = (byte | 7) + 1) {
        const unsigned char bytes = (unsigned char)(size >= 8 ? 0xFF : ((1 << size) - 1) << byte % 8);
        remember(page.accesses[byte / 8], {actor_of(*current), (unsigned char)what, bytes}, race, other);
    }
    for (u64 byte = first; byte < end; byte++) {
        unwritten |= what != WRITE && page.unwritten[byte];
        if (what != READ) page.unwritten[byte] = false;
    }
    if (race) report(RACE, at, size, what, &view, &other);
    if (unwritten) report(UNINITIALISED, at, size, what, &view, nullptr);
}

// Of several that hold it one that allows the access, if there is one.
const View* find_view(u64 at, u64 size, int what) {
    if (current->block->shared.holds(at, size)) return &current->block->shared;
    const View* found = nullptr;
    for (const View& view : launches[current->block->launch].views)
        if (view.holds(at, size)) {
            if (what == READ || view.writable) return &view;
            if (!found) found = &view;
        }
    return found;
}

bool own_memory(u64 at, u64 size) {
    const Launch& launch = launches[current->block->launch];
    const u64 params = (u64)launch.params.data(), stack = (u64)current->stack;
    return (at >= stack && at + size <= stack + STACK_BYTES) ||
           (at >= params && at + size <= params + launch.params.size() * 8);
}

void access(u64 at, u64 size, int what) {
    if (!current || own_memory(at, size)) return;
    accesses++;
    if (--budget == 0) {
        report(ENDLESS, at, size, what, nullptr, nullptr);
        budget = 1;
        stop_thread();
    }
    if ((random_number() >> 20 & 1023) < preempt_rate) yield();
    const View* view = find_view(at, size, what);
    if (!view) {
        report(OUT_OF_BOUNDS, at, size, what, nullptr, nullptr);
        stop_thread();
    }
    if (what != READ && !view->writable) {
        report(WRITE_TO_CONST, at, size, what, view, nullptr);
        stop_thread();
    }
    if (at % size) {
        report(MISALIGNED, at, size, what, view, nullptr);
        stop_thread();
    }
    touch(view->number == SHARED_VIEW ? current->block->shadow : device, *view, at, size, what);
}

// --- threads, blocks, launches ------------------------------------------------------------------

void run_fiber() {
    launches[current->block->launch].body(launches[current->block->launch].params.data());
    current->ended = true;
    swapcontext(&current->context, &scheduler);
}

unsigned char* take_stack() {
    if (free_stacks.empty()) return (unsigned char*)malloc(STACK_BYTES);
    unsigned char* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

std::unique_ptr<Fiber> start_fiber(Block* block, const Launch& launch, unsigned block_index, unsigned thread) {
    std::unique_ptr<Fiber> fiber(new Fiber());
    fiber->stack = take_stack();
    fiber->block = block;
    fiber->position = {{launch.grid}, {launch.block}, {block_index}, {thread}};
    fiber->phase = 1;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, run_fiber, 0);
    return fiber;
}

void start_block(int number) {
    Launch& launch = launches[number];
    std::unique_ptr<Block> block(new Block());
    block->launch = number;
    for (unsigned thread = 0; thread < launch.block; thread++)
        block->fibers.push_back(start_fiber(block.get(), launch, launch.started, thread));
    launch.started++;
    resident.push_back(std::move(block));
}

bool ready(int number) {
    for (size_t i = 0; i < launches.size(); i++)
        if (launches[number].before >> i & 1 && launches[i].ended < launches[i].grid) return false;
    return launches[number].started < launches[number].grid;
}

void fill(unsigned most) {
    std::vector<int> waiting;
    while (resident.size() < most) {
        waiting.clear();
        for (size_t i = 0; i < launches.size(); i++)
            if (ready((int)i)) waiting.push_back((int)i);
        if (waiting.empty()) return;
        start_block(waiting[random_number() % waiting.size()]);
    }
}

// Everyone waits, or has ended: the barrier opens.
void open_barrier(Block& block) {
    Fiber* first = nullptr;
    bool broken = false, ended = false, differs = false;
    for (auto& fiber : block.fibers) {
        broken |= fiber->broken;
        ended |= fiber->ended;
        if (fiber->ended) continue;
        if (!first) first = fiber.get();
        differs |= fiber->barrier != first->barrier;
    }
    if ((ended || differs) && !broken) {
        current = first;
        report(DIVERGENCE, 0, 0, READ, nullptr, nullptr);
        findings.back().line = (u64)first->barrier;
        current = nullptr;
    }
    for (auto& fiber : block.fibers) {
        fiber->barrier = 0;
        fiber->phase++;
    }
}

// Runs one thread of a block up to its next pause; false when the block has ended.
bool advance(Block& block) {
    std::vector<Fiber*> able;
    bool alive = false;
    for (auto& fiber : block.fibers) {
        alive |= !fiber->ended;
        if (!fiber->ended && !fiber->barrier) able.push_back(fiber.get());
    }
    if (!alive) return false;
    if (able.empty()) {
        open_barrier(block);
        return true;
    }
    current = able[random_number() % able.size()];
    swapcontext(&scheduler, &current->context);
    current = nullptr;
    return true;
}

}  // namespace

extern "C" {

void checked_reset() {
    device.pages.clear();
    launches.clear();
    findings.clear();
}

// Sets which bytes nobody has written yet, or tells which nobody has written still.
void checked_unwritten(u64 start, u64 size, unsigned char* unwritten, int set) {
    for (u64 i = 0; i < size; i++)
        if (set)
            device.unwritten(start + i) = unwritten[i];
        else
            unwritten[i] = device.unwritten(start + i);
}

void checked_submit(void (*body)(const void*), const u64* params, int fields, unsigned grid, unsigned block,
                    u64 before) {
    launches.push_back(Launch{body, std::vector<u64>(params, params + fields), grid, block, before, 0, 0, {}});
}

// A view of the launch that was submitted last.
void checked_view(int number, u64 start, u64 size, const unsigned char* mask, int writable) {
    launches.back().views.push_back(View{number, start, size, mask, writable != 0});
}

int checked_run(u64 seed, unsigned rate, unsigned most_resident, u64 most_accesses) {
    random_state = (seed + 1) * 0x9E3779B97F4A7C15ULL | 1;
    preempt_rate = rate;
    budget = most_accesses;
    for (fill(most_resident); !resident.empty(); fill(most_resident)) {
        const size_t at = random_number() % resident.size();
        if (advance(*resident[at])) continue;
        launches[resident[at]->launch].ended++;
        for (auto& fiber : resident[at]->fibers) free_stacks.push_back(fiber->stack);
        resident[at].swap(resident.back());
        resident.pop_back();
    }
    return (int)findings.size();
}

const Finding* checked_findings() { return findings.data(); }
u64 checked_accesses() { return accesses; }

// --- what the kernels call ------------------------------------------------------------------------

const Position* checked_position() { return &current->position; }
void* checked_shared(unsigned long size) {
    Block& block = *current->block;
    if (block.memory.empty()) {
        block.memory.assign(size + GUARD_BYTES, 0xCB);
        block.shared = {SHARED_VIEW, (u64)block.memory.data(), size, nullptr, true};
        for (u64 i = 0; i < size; i++) block.shadow.unwritten(block.shared.start + i) = true;
    }
    return block.memory.data();
}
void checked_barrier(int line) {
    current->barrier = line;
    yield();
}

u64 checked_add(u64* at, u64 value) {
    access((u64)at, 8, ATOMIC);
    const u64 before = *at;
    *at = before + value;
    return before;
}
u64 checked_min(u64* at, u64 value) {
    access((u64)at, 8, ATOMIC);
    const u64 before = *at;
    if (value < before) *at = value;
    return before;
}
unsigned checked_exchange(unsigned* at, unsigned value) {
    access((u64)at, 4, ATOMIC);
    const unsigned before = *at;
    *at = value;
    return before;
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define WATCH(size)                                                                  \
    void __tsan_read##size(void* at) { access((u64)at, size, READ); }            \
    void __tsan_write##size(void* at) { access((u64)at, size, WRITE); }          \
    void __tsan_unaligned_read##size(void* at) { access((u64)at, size, READ); } \
    void __tsan_unaligned_write##size(void* at) { access((u64)at, size, WRITE); }
WATCH(1)
WATCH(2)
WATCH(4)
WATCH(8)
WATCH(16)
// Accesses of other sizes are several of the machine's.
void __tsan_read_range(void* at, unsigned long size) {
    for (unsigned long i = 0; i < size; i++) access((u64)at + i, 1, READ);
}
void __tsan_write_range(void* at, unsigned long size) {
    for (unsigned long i = 0; i < size; i++) access((u64)at + i, 1, WRITE);
}
}
