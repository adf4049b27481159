// --- attention -----------------------------------------------------------------------------

// Positions that are weighed together. Fixed, so that neither geometry nor block size changes a result.
#define CHUNK 64
#define MOST_DIMS 256

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
    f32 query[MOST_DIMS];
    f32 sum[MOST_DIMS];
    f32 lost[MOST_DIMS];
    f32 weights[CHUNK];
    i64 places[CHUNK];
};

// A sum that keeps what rounding lost, so that long rows are no less exact than short ones.
DEVICE void add_exactly(f32& sum, f32& lost, f32 value) {
    const f32 term = value - lost;
    const f32 next = sum + term;
    lost = (next - sum) - term;
    sum = next;
}

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
            shared.lost[dim] = 0;
        }
        f32 most = 0;
        f32 total = 0;
        f32 total_lost = 0;
        for (i64 chunk = start; chunk < end; chunk += CHUNK) {
            const i64 count = end - chunk < CHUNK ? end - chunk : CHUNK;
            __syncthreads();
            for (i64 i = thread; i < count; i += threads) {
                const i64 place = place_of_position(p, blocks, chunk + i, head / group);
                f32 dot = 0;
                f32 dot_lost = 0;
                if (place < 0)
                    count_error(p.errors, 0);
                else
                    for (i64 dim = 0; dim < p.dims; dim++)
                        add_exactly(dot, dot_lost, shared.query[dim] * wide(((const T*)p.key)[place + dim]));
                shared.places[i] = place;
                shared.weights[i] = dot * (f32)(p.scale * p.key_scale);
            }
            __syncthreads();
            // Every thread joins the weights for itself, in the same order.
            f32 now = chunk == start ? shared.weights[0] : most;
            for (i64 i = 0; i < count; i++)
                if (shared.places[i] >= 0 && shared.weights[i] > now) now = shared.weights[i];
            const f32 fade = chunk == start ? 0 : expf(most - now);
            most = now;
            total *= fade;
            total_lost *= fade;
            for (i64 i = 0; i < count; i++)
                if (shared.places[i] >= 0) add_exactly(total, total_lost, expf(shared.weights[i] - most));
            for (i64 dim = thread; dim < p.dims; dim += threads) {
                f32 sum = shared.sum[dim] * fade;
                f32 lost = shared.lost[dim] * fade;
                for (i64 i = 0; i < count; i++)
                    if (shared.places[i] >= 0)
                        add_exactly(sum, lost, expf(shared.weights[i] - most) *
                                                   wide(((const T*)p.value)[shared.places[i] + dim]));
                shared.sum[dim] = sum;
                shared.lost[dim] = lost;
            }
        }
        for (i64 dim = thread; dim < p.dims; dim += threads)
            p.output[item * p.dims + dim] = total > 0 ? shared.sum[dim] / total * (f32)p.value_scale : 0;
    }
}

// One query a row, at its last position: `query` and `output` are `[rows, query_heads, dims]`, and query head `h` reads
// head `h / (query_heads / heads)`. With a window only the last `window` positions are read. `dims` is at most 256.
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
