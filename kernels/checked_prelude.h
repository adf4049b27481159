// What `kv_kernels.cu` needs from CUDA, for the build that is watched. It is compiled with -fsanitize=thread, so that
// the compiler itself calls `__tsan_…` at every load and store; `checked_runtime.cpp` answers these calls.

#include <cmath>

struct Dimensions {
    unsigned x;
};
struct Position {
    Dimensions grid, block, in_grid, in_block;
};

extern "C" {
const Position* checked_position();
void* checked_shared(unsigned long size);
void checked_barrier(int line);
unsigned long long checked_add(unsigned long long* at, unsigned long long value);
unsigned long long checked_min(unsigned long long* at, unsigned long long value);
unsigned checked_exchange(unsigned* at, unsigned value);
}

// Read by a function that isn't watched: where a thread is, is no memory of the device.
#define CHECKED_INDEX(name, member)                                                                             \
    __attribute__((no_sanitize("thread"), noinline)) static Dimensions name() { return checked_position()->member; }
CHECKED_INDEX(checked_grid_dim, grid)
CHECKED_INDEX(checked_block_dim, block)
CHECKED_INDEX(checked_block_index, in_grid)
CHECKED_INDEX(checked_thread_index, in_block)
#define gridDim checked_grid_dim()
#define blockDim checked_block_dim()
#define blockIdx checked_block_index()
#define threadIdx checked_thread_index()

#define DEVICE static inline __attribute__((always_inline))
#define SHARED(Type, name) Type& name = *(Type*)checked_shared(sizeof(Type))
#define __syncthreads() checked_barrier(__LINE__)
#define atomicAdd checked_add
#define atomicMin checked_min
#define atomicExch checked_exchange

// One access of 16 bytes: as a struct it would be split, and misalignment would pass.
typedef unsigned u128 __attribute__((vector_size(16)));

#define KERNEL(name, Params)                                                      \
    static inline void name##_thread(const Params& p);                            \
    extern "C" void name(const void* p) { name##_thread(*(const Params*)p); }     \
    static inline __attribute__((always_inline)) void name##_thread(const Params& p)
#define BLOCK_KERNEL(name, Params) KERNEL(name, Params)
