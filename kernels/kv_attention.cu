// --- attention -----------------------------------------------------------------------------

// Positions that are weighed together. Fixed, so that neither geometry nor block size changes a result.
#define CHUNK 64
#define MOST_DIMS 256
// Where the maximum begins. Only −∞ lies below: beside any other score it weighs nothing.
#define LEAST_SCORE (-1.7976931348623157e308)

struct Attend {
    const f32* query;
    f32* output;
    const void* key;
    const void* value;
    const i32* table;
    const i64* lengths;
    u64* errors;
    i64 rows;
    i64 row_stride;
    i64 row_blocks;
    i64 heads;
    i64 query_heads;
    i64 dims;
    i64 cache_blocks;
    i64 block_size;
    i64 window;
    i64 block_stride;
    i64 offset_stride;
    i64 head_stride;
    f64 scale;
    f64 key_scale;
    f64 value_scale;
};

struct Attention {
    f64 sum[MOST_DIMS];
    f64 weights[CHUNK];
    i64 places[CHUNK];
    f32 query[MOST_DIMS];
};

// Where the elements of a row's position begin, or −1.
DEVICE i64 place_of_position(const Attend& p, const i32* blocks, i64 position, i64 head) {
    const i64 offset = take(position, p.block_size);
    if (position >= p.row_blocks || !inside(blocks[position], p.cache_blocks)) return -1;
    return blocks[position] * p.block_stride + offset * p.offset_stride + head * p.head_stride;
}

template <class T>
DEVICE void paged_attention_decode(const Attend& p, Attention& shared) {
    const i64 thread = threadIdx.x;
    const i64 threads = blockDim.x;
    const i64 group = p.query_heads / p.heads;
    for (i64 item = blockIdx.x; item < p.rows * p.query_heads; item += gridDim.x) {
        i64 row = item;
        const i64 head = take(row, p.query_heads);
        const i32* blocks = p.table + row * p.row_stride;
        const i64 end = p.lengths[row];
        const i64 start = p.window && end > p.window ? end - p.window : 0;
        for (i64 dim = thread; dim < p.dims; dim += threads) {
            shared.query[dim] = p.query[item * p.dims + dim];
            shared.sum[dim] = 0;
        }
        f64 most = LEAST_SCORE;
        f64 total = 0;
        bool nothing = true;
        for (i64 chunk = start; chunk < end; chunk += CHUNK) {
            const i64 count = end - chunk < CHUNK ? end - chunk : CHUNK;
            __syncthreads();
            for (i64 i = thread; i < count; i += threads) {
                const i64 place = place_of_position(p, blocks, chunk + i, head / group);
                f64 dot = 0;
                if (place < 0)
                    count_error(p.errors, 0);
                else
                    for (i64 dim = 0; dim < p.dims; dim++)
                        dot += (f64)shared.query[dim] * wide(((const T*)p.key)[place + dim]);
                shared.places[i] = place;
                shared.weights[i] = dot * (p.scale * p.key_scale);
            }
            __syncthreads();
            // Every thread finds the maximum and joins the weights for itself, in the same order.
            f64 now = most;
            for (i64 i = 0; i < count; i++)
                if (shared.places[i] >= 0 && shared.weights[i] > now) now = shared.weights[i];
            const f64 fade = exp(most - now);
            most = now;
            __syncthreads();
            for (i64 i = thread; i < count; i += threads) shared.weights[i] = exp(shared.weights[i] - most);
            __syncthreads();
            total *= fade;
            for (i64 i = 0; i < count; i++)
                if (shared.places[i] >= 0) {
                    total += shared.weights[i];
                    nothing = false;
                }
            for (i64 dim = thread; dim < p.dims; dim += threads) {
                f64 sum = shared.sum[dim] * fade;
                for (i64 i = 0; i < count; i++)
                    if (shared.places[i] >= 0)
                        sum += shared.weights[i] * wide(((const T*)p.value)[shared.places[i] + dim]);
                shared.sum[dim] = sum;
            }
        }
        for (i64 dim = thread; dim < p.dims; dim += threads)
            p.output[item * p.dims + dim] = nothing ? 0 : (f32)(shared.sum[dim] / total * p.value_scale);
    }
}

// One query a row, at its last position: `query` and `output` are `[rows, query_heads, dims]`, and query head `h` reads
// head `h / (query_heads / heads)`. With a window only the last `window` positions are read. `dims` is at most 256.
// It is the softmax in 64 bits over the positions that lie in the cache, whatever is no number among them; over none it
// is 0.
BLOCK_KERNEL(paged_attention_decode_f32, Attend) {
    SHARED(Attention, shared);
    paged_attention_decode<f32>(p, shared);
}
BLOCK_KERNEL(paged_attention_decode_f16, Attend) {
    SHARED(Attention, shared);
    paged_attention_decode<Half>(p, shared);
}
BLOCK_KERNEL(paged_attention_decode_bf16, Attend) {
    SHARED(Attention, shared);
    paged_attention_decode<Brain>(p, shared);
}
BLOCK_KERNEL(paged_attention_decode_e4m3, Attend) {
    SHARED(Attention, shared);
    paged_attention_decode<Eight>(p, shared);
}
