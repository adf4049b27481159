// The device code of a paged K/V cache: one source for NVRTC, for g++ and for g++ with every access watched.
//
// It lies in parts, this one first, which `source.py` joins: later ones use what earlier ones define.
// No header is included, and nothing but `KERNEL`, `BLOCK_KERNEL`, `SHARED` and `DEVICE` differs between
// the builds. Any grid and any block size are right: a thread takes every `stride()`-th item, and results
// that several threads join (counts, minima, sums) don't depend on order. Offsets are 64 bits
// wide. A slot, block or row outside its array is counted in `errors`, never followed.
//
// A kernel takes one struct, whose fields are all 8 bytes wide; the host reads them from here, one a
// line. Strides and sizes are in units of the kernel's suffix: `_2` moves units of 2 bytes. A cache
// is any array with strides for layer, block, side (key or value), offset, head and unit.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

#ifndef KERNEL
#define DEVICE static __device__ __forceinline__
#define KERNEL(name, Params) extern "C" __global__ void name(const Params p)
// A kernel whose threads wait for each other or share memory.
#define BLOCK_KERNEL(name, Params) KERNEL(name, Params)
#define SHARED(Type, name) __shared__ Type name
typedef uint4 u128;
#endif

DEVICE i64 first_item() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE i64 stride() { return (i64)gridDim.x * blockDim.x; }
#define EACH(item, count) for (i64 item = first_item(); item < (count); item += stride())

// `value` becomes the quotient; the remainder is returned. 64-bit divisions are slow on a GPU.
DEVICE i64 take(i64& value, i64 size) {
    if (((u64)value | (u64)size) >> 32) {
        const i64 rest = value % size;
        value /= size;
        return rest;
    }
    const u32 rest = (u32)value % (u32)size;
    value = (u32)value / (u32)size;
    return rest;
}

DEVICE bool inside(i64 index, i64 end) { return index >= 0 && index < end; }
DEVICE void count_error(u64* errors, i64 kind) { atomicAdd(errors + kind, 1ULL); }

// --- contents ------------------------------------------------------------------------------

#define MIX_A 0xBF58476D1CE4E5B9ULL
#define MIX_B 0x94D049BB133111EBULL
#define CHAIN 0x9E3779B97F4A7C15ULL
#define PLACE 0xD1B54A32D192ED03ULL
#define OFFSET 0x8CB92BA72F3D8DD7ULL

DEVICE u64 mix64(u64 value) {
    value = (value ^ value >> 30) * MIX_A;
    value = (value ^ value >> 27) * MIX_B;
    return value ^ value >> 31;
}

// The number of a head's first word among the words of a token.
DEVICE u64 place_of(i64 layer, i64 side, i64 head) { return (u64)((layer * 2 + side) << 12 | head) << 16; }
DEVICE u64 word_at(u64 digest, u64 place) { return mix64((digest ^ place * PLACE) + OFFSET); }

struct Synthesize {
    u64* key;
    u64* value;
    const u64* digests;
    i64 tokens;
    i64 layers;
    i64 heads;
    i64 words;
    i64 lanes;
};

DEVICE void synthesize_head(u64* __restrict__ target, u64 digest, u64 place, i64 lane, i64 lanes, i64 words) {
    if (lanes == 1)
        for (i64 word = 0; word < words; word++) target[word] = word_at(digest, place + word);
    else
        for (i64 word = lane; word < words; word += lanes) target[word] = word_at(digest, place + word);
}

// Keys and values `[tokens, layers, heads, words]` from claim digests.
KERNEL(synthesize, Synthesize) {
    EACH(item, p.tokens * 2 * p.layers * p.lanes) {
        i64 rest = item;
        const i64 lane = take(rest, p.lanes);
        const i64 layer = take(rest, p.layers);
        const i64 side = take(rest, 2);
        const u64 digest = p.digests[rest];
        u64* target = (side ? p.value : p.key) + (rest * p.layers + layer) * p.heads * p.words;
        for (i64 head = 0; head < p.heads; head++)
            synthesize_head(target + head * p.words, digest, place_of(layer, side, head), lane, p.lanes, p.words);
    }
}

struct Verify {
    const u64* cache;
    const i64* blocks;
    const i64* offsets;
    const u64* digests;
    const i64* columns;
    u64* counts;
    u64* firsts;
    u64* errors;
    i64 tokens;
    i64 results;
    i64 cache_blocks;
    i64 block_size;
    i64 layers;
    i64 heads;
    i64 words;
    i64 layer_stride;
    i64 block_stride;
    i64 side_stride;
    i64 offset_stride;
    i64 head_stride;
    i64 lanes;
};

DEVICE i64 wrong_words(const u64* __restrict__ found, u64 digest, u64 place, i64 lane, i64 lanes, i64 words) {
    i64 wrong = 0;
    if (lanes == 1)
        for (i64 word = 0; word < words; word++) wrong += found[word] != word_at(digest, place + word);
    else
        for (i64 word = lane; word < words; word += lanes) wrong += found[word] != word_at(digest, place + word);
    return wrong;
}

DEVICE i64 first_wrong_word(const u64* found, u64 digest, u64 place, i64 lane, i64 lanes) {
    i64 word = lane;
    while (found[word] == word_at(digest, place + word)) word += lanes;
    return word;
}

// Regenerates what each token's digest demands and compares. Per layer and result column (`columns[token]`, or
// the token's own where there are no columns): how many words differ, and the least place
// `((offset·2 + side) << 12 | head) << 16 | word` of one that does. The host sets `counts` to 0 and
// `firsts` to the greatest number.
KERNEL(verify_blocks, Verify) {
    EACH(item, p.tokens * p.layers * p.lanes) {
        i64 token = item;
        const i64 lane = take(token, p.lanes);
        const i64 layer = take(token, p.layers);
        const i64 block = p.blocks[token];
        const i64 offset = p.offsets[token];
        const i64 column = p.columns ? p.columns[token] : token;
        if (!inside(block, p.cache_blocks) || !inside(offset, p.block_size) || !inside(column, p.results)) {
            if (lane == 0 && layer == 0) count_error(p.errors, 0);
            continue;
        }
        const u64* row = p.cache + layer * p.layer_stride + block * p.block_stride + offset * p.offset_stride;
        const u64 digest = p.digests[token];
        i64 wrong = 0;
        u64 least = ~0ULL;
        for (i64 side = 0; side < 2; side++)
            for (i64 head = 0; head < p.heads; head++) {
                const u64* found = row + side * p.side_stride + head * p.head_stride;
                const u64 place = place_of(layer, side, head);
                const i64 more = wrong_words(found, digest, place, lane, p.lanes, p.words);
                if (more && !wrong)
                    least = place_of(offset, side, head) | (u64)first_wrong_word(found, digest, place, lane, p.lanes);
                wrong += more;
            }
        if (wrong) {
            atomicAdd(p.counts + layer * p.results + column, (u64)wrong);
            atomicMin(p.firsts + layer * p.results + column, least);
        }
    }
}

struct Fingerprint {
    const u64* cache;
    const i64* blocks;
    const i64* starts;
    const i64* ends;
    u64* digests;
    u64* errors;
    i64 count;
    i64 cache_blocks;
    i64 block_size;
    i64 layers;
    i64 heads;
    i64 words;
    i64 layer_stride;
    i64 block_stride;
    i64 side_stride;
    i64 offset_stride;
    i64 head_stride;
    i64 lanes;
};

DEVICE void add_word(u64& low, u64& high, u64 content, u64 place) {
    const u64 key = place * PLACE;
    low += mix64((content ^ key) + OFFSET);
    high += mix64((content ^ (key << 32 | key >> 32)) + CHAIN);
}

// Adds to `digests [layers, count, 2]` the sum over the words of tokens `starts…ends−1` of each block: any order
// gives the same, and the sum for `n + 1` tokens is that for `n` plus the new token's.
KERNEL(fingerprint_blocks, Fingerprint) {
    EACH(item, p.layers * p.count * p.lanes) {
        i64 layer = item;
        const i64 lane = take(layer, p.lanes);
        const i64 index = take(layer, p.count);
        const i64 block = p.blocks[index];
        const i64 start = p.starts[index];
        const i64 end = p.ends[index];
        if (!inside(block, p.cache_blocks) || start < 0 || end > p.block_size) {
            if (lane == 0 && layer == 0) count_error(p.errors, 0);
            continue;
        }
        const u64* row = p.cache + layer * p.layer_stride + block * p.block_stride;
        u64 low = 0;
        u64 high = 0;
        for (i64 side = 0; side < 2; side++)
            for (i64 offset = start; offset < end; offset++)
                for (i64 head = 0; head < p.heads; head++) {
                    const u64* found = row + side * p.side_stride + offset * p.offset_stride + head * p.head_stride;
                    const u64 place = place_of(offset, side, head);
                    if (p.lanes == 1)
                        for (i64 word = 0; word < p.words; word++) add_word(low, high, found[word], place + word);
                    else
                        for (i64 word = lane; word < p.words; word += p.lanes)
                            add_word(low, high, found[word], place + word);
                }
        u64* sum = p.digests + (layer * p.count + index) * 2;
        atomicAdd(sum, low);
        atomicAdd(sum + 1, high);
    }
}
