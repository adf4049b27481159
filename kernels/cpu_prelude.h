// What `kv_kernels.cu` needs from CUDA, for g++: a launch runs every thread of every block, one after the other, on the
// caller's own thread. Threads of a `BLOCK_KERNEL` are fibers that change at barriers.
// Not for two launches at once: the caller keeps Python's lock.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <ucontext.h>

struct Dimensions {
    unsigned x;
};
static Dimensions gridDim, blockDim, blockIdx, threadIdx;

#define DEVICE static inline __attribute__((always_inline))
typedef unsigned u128 __attribute__((vector_size(16)));

static inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
    const unsigned long long before = *at;
    *at = before + value;
    return before;
}
static inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
    const unsigned long long before = *at;
    if (value < before) *at = value;
    return before;
}
static inline unsigned atomicExch(unsigned* at, unsigned value) {
    const unsigned before = *at;
    *at = value;
    return before;
}

// --- threads that wait for each other ---------------------------------------------------------

enum { STACK_BYTES = 1 << 16, SHARED_BYTES = 1 << 14 };
alignas(16) static unsigned char shared_memory[SHARED_BYTES];
#define SHARED(Type, name)                             \
    static_assert(sizeof(Type) <= SHARED_BYTES, ""); \
    Type& name = *(Type*)shared_memory

struct Fiber {
    ucontext_t context;
    bool ended;
};
static std::vector<Fiber> fibers;
static std::vector<unsigned char> stacks;
static ucontext_t scheduler;
static void (*fiber_body)(const void*);
static const void* fiber_params;

static void run_fiber() {
    fiber_body(fiber_params);
    fibers[threadIdx.x].ended = true;
}
static inline void __syncthreads() {
    // A lone thread waits for nobody.
    if (blockDim.x > 1) swapcontext(&fibers[threadIdx.x].context, &scheduler);
}

// Runs a block's threads from barrier to barrier.
static void run_fibers() {
    const unsigned threads = blockDim.x;
    if (fibers.size() < threads) {
        fibers.resize(threads);
        stacks.resize((size_t)threads * STACK_BYTES);
    }
    for (unsigned thread = 0; thread < threads; thread++) {
        Fiber& fiber = fibers[thread];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks.data() + (size_t)thread * STACK_BYTES;
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = &scheduler;
        fiber.ended = false;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (unsigned running = threads; running;) {
        running = 0;
        for (unsigned thread = 0; thread < threads; thread++) {
            if (fibers[thread].ended) continue;
            threadIdx.x = thread;
            swapcontext(&scheduler, &fibers[thread].context);
            running += !fibers[thread].ended;
        }
    }
}

// --- launches ------------------------------------------------------------------------------------

#define KERNEL(name, Params)                                                           \
    static inline __attribute__((always_inline)) void name##_thread(const Params& p);  \
    extern "C" void name(const Params* p, unsigned grid, unsigned block) {             \
        gridDim.x = grid;                                                              \
        blockDim.x = block;                                                            \
        for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)                          \
            for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) name##_thread(*p); \
    }                                                                                  \
    static inline void name##_thread(const Params& p)

#define BLOCK_KERNEL(name, Params)                                                     \
    static void name##_thread(const Params& p);                                        \
    static void name##_fiber(const void* p) { name##_thread(*(const Params*)p); }      \
    extern "C" void name(const Params* p, unsigned grid, unsigned block) {             \
        gridDim.x = grid;                                                              \
        blockDim.x = block;                                                            \
        fiber_body = name##_fiber;                                                     \
        fiber_params = p;                                                              \
        for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) {                        \
            memset(shared_memory, 0xCB, SHARED_BYTES);                                 \
            threadIdx.x = 0;                                                           \
            if (block == 1)                                                            \
                name##_thread(*p);                                                     \
            else                                                                       \
                run_fibers();                                                          \
        }                                                                              \
    }                                                                                  \
    static void name##_thread(const Params& p)
