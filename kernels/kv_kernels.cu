// The device code of a paged K/V cache: one source for NVRTC, for g++ and for g++ with every access watched.
//
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

// --- moving tokens and blocks -----------------------------------------------------------------

template <class U>
DEVICE void copy_units(U* __restrict__ target, const U* __restrict__ source, i64 lane, i64 lanes, i64 units) {
    if (lanes == 1)
        for (i64 unit = 0; unit < units; unit++) target[unit] = source[unit];
    else
        for (i64 unit = lane; unit < units; unit += lanes) target[unit] = source[unit];
}

template <class U>
DEVICE void copy_strided(U* target, i64 target_stride, const U* source, i64 source_stride, i64 lane, i64 lanes, i64 units) {
    if (target_stride == 1 && source_stride == 1)
        copy_units(target, source, lane, lanes, units);
    else
        for (i64 unit = lane; unit < units; unit += lanes) target[unit * target_stride] = source[unit * source_stride];
}

struct Tokens {
    void* tokens;
    void* cache;
    const i64* slots;
    u32* claims;
    u64* errors;
    i64 count;
    i64 sides;
    i64 layers;
    i64 heads;
    i64 units;
    i64 cache_blocks;
    i64 block_size;
    i64 token_stride;
    i64 token_layer_stride;
    i64 token_side_stride;
    i64 token_head_stride;
    i64 token_unit_stride;
    i64 layer_stride;
    i64 block_stride;
    i64 side_stride;
    i64 offset_stride;
    i64 head_stride;
    i64 unit_stride;
    i64 epoch;
    i64 lanes;
};

// Where a part of a token (one side of one layer) lies in its own array and in the cache.
struct Part {
    i64 token;
    i64 layer;
    i64 side;
    i64 lane;
    i64 slot;
    i64 token_offset;
    i64 cache_offset;
};

#define PADDING (-1)
// No slot that is outside the cache is this one.
#define NOTHING 0

// False where nothing is to be moved: padding, or a slot outside the cache, which is counted.
DEVICE bool find_part(const Tokens& p, i64 item, i64 padding, Part& part) {
    part.token = item;
    part.lane = take(part.token, p.lanes);
    part.layer = take(part.token, p.layers);
    part.side = take(part.token, p.sides);
    part.slot = p.slots[part.token];
    if (!inside(part.slot, p.cache_blocks * p.block_size)) {
        if (part.slot != padding && part.lane + part.layer + part.side == 0) count_error(p.errors, 0);
        return false;
    }
    i64 block = part.slot;
    const i64 offset = take(block, p.block_size);
    part.token_offset =
        part.token * p.token_stride + part.layer * p.token_layer_stride + part.side * p.token_side_stride;
    part.cache_offset =
        part.layer * p.layer_stride + block * p.block_stride + part.side * p.side_stride + offset * p.offset_stride;
    return true;
}

// A second claim of a slot in one launch is a conflict. `epoch` is the launch's own, so claims are never reset.
DEVICE void claim_slot(const Tokens& p, const Part& part) {
    if (p.claims && part.lane + part.layer + part.side == 0)
        if (atomicExch(p.claims + part.slot, (u32)p.epoch) == (u32)p.epoch) count_error(p.errors, 1);
}

template <class U>
DEVICE void reshape_and_cache(const Tokens& p) {
    EACH(item, p.count * p.sides * p.layers * p.lanes) {
        Part part;
        if (!find_part(p, item, PADDING, part)) continue;
        claim_slot(p, part);
        const U* source = (const U*)p.tokens + part.token_offset;
        U* target = (U*)p.cache + part.cache_offset;
        for (i64 head = 0; head < p.heads; head++)
            copy_strided(target + head * p.head_stride, p.unit_stride, source + head * p.token_head_stride,
                         p.token_unit_stride, part.lane, p.lanes, p.units);
    }
}

// Writes each token to its slot, `block · block_size + offset`; −1 is padding.
KERNEL(reshape_and_cache_1, Tokens) { reshape_and_cache<u8>(p); }
KERNEL(reshape_and_cache_2, Tokens) { reshape_and_cache<u16>(p); }
KERNEL(reshape_and_cache_4, Tokens) { reshape_and_cache<u32>(p); }
KERNEL(reshape_and_cache_8, Tokens) { reshape_and_cache<u64>(p); }
KERNEL(reshape_and_cache_16, Tokens) { reshape_and_cache<u128>(p); }

template <class U>
DEVICE void gather_slots(const Tokens& p) {
    EACH(item, p.count * p.sides * p.layers * p.lanes) {
        Part part;
        if (!find_part(p, item, NOTHING, part)) continue;
        U* target = (U*)p.tokens + part.token_offset;
        const U* source = (const U*)p.cache + part.cache_offset;
        for (i64 head = 0; head < p.heads; head++)
            copy_strided(target + head * p.token_head_stride, p.token_unit_stride, source + head * p.head_stride,
                         p.unit_stride, part.lane, p.lanes, p.units);
    }
}

// The inverse: reads each token from its slot. Padding has none, so it is an error.
KERNEL(gather_slots_1, Tokens) { gather_slots<u8>(p); }
KERNEL(gather_slots_2, Tokens) { gather_slots<u16>(p); }
KERNEL(gather_slots_4, Tokens) { gather_slots<u32>(p); }
KERNEL(gather_slots_8, Tokens) { gather_slots<u64>(p); }
KERNEL(gather_slots_16, Tokens) { gather_slots<u128>(p); }

struct Blocks {
    const void* source;
    void* target;
    const i64* sources;
    const i64* targets;
    const i64* tokens;
    u64* errors;
    i64 count;
    i64 sides;
    i64 layers;
    i64 heads;
    i64 units;
    i64 source_blocks;
    i64 target_blocks;
    i64 block_size;
    i64 source_layer_stride;
    i64 source_block_stride;
    i64 target_layer_stride;
    i64 target_block_stride;
    i64 side_stride;
    i64 offset_stride;
    i64 head_stride;
    i64 lanes;
};

template <class U>
DEVICE void copy_blocks(const Blocks& p) {
    EACH(item, p.count * p.sides * p.layers * p.lanes) {
        i64 copy = item;
        const i64 lane = take(copy, p.lanes);
        const i64 layer = take(copy, p.layers);
        const i64 side = take(copy, p.sides);
        const i64 from = p.sources[copy];
        const i64 to = p.targets[copy];
        const i64 tokens = p.tokens[copy];
        if (!inside(from, p.source_blocks) || !inside(to, p.target_blocks) || !inside(tokens, p.block_size + 1)) {
            if (lane + layer + side == 0) count_error(p.errors, 0);
            continue;
        }
        const U* source = (const U*)p.source + layer * p.source_layer_stride + from * p.source_block_stride +
                          side * p.side_stride;
        U* target = (U*)p.target + layer * p.target_layer_stride + to * p.target_block_stride + side * p.side_stride;
        for (i64 head = 0; head < p.heads; head++) {
            const i64 start = head * p.head_stride;
            if (p.offset_stride == p.units)
                copy_units(target + start, source + start, lane, p.lanes, tokens * p.units);
            else
                for (i64 offset = 0; offset < tokens; offset++)
                    copy_units(target + start + offset * p.offset_stride, source + start + offset * p.offset_stride, lane,
                               p.lanes, p.units);
        }
    }
}

// Copies the first `tokens[i]` tokens of block `sources[i]` to block `targets[i]`, within a cache or into another array
// (a gather of blocks). Copies of one launch are unordered.
KERNEL(copy_blocks_1, Blocks) { copy_blocks<u8>(p); }
KERNEL(copy_blocks_2, Blocks) { copy_blocks<u16>(p); }
KERNEL(copy_blocks_4, Blocks) { copy_blocks<u32>(p); }
KERNEL(copy_blocks_8, Blocks) { copy_blocks<u64>(p); }
KERNEL(copy_blocks_16, Blocks) { copy_blocks<u128>(p); }

struct Zero {
    u8* cache;
    const i64* blocks;
    u64* errors;
    i64 count;
    i64 sides;
    i64 layers;
    i64 cache_blocks;
    i64 layer_stride;
    i64 block_stride;
    i64 side_stride;
    i64 bytes;
    i64 lanes;
};

// Zeroes `bytes` contiguous bytes on each side of every layer of each block.
KERNEL(zero_blocks, Zero) {
    EACH(item, p.count * p.sides * p.layers * p.lanes) {
        i64 index = item;
        const i64 lane = take(index, p.lanes);
        const i64 layer = take(index, p.layers);
        const i64 side = take(index, p.sides);
        const i64 block = p.blocks[index];
        if (!inside(block, p.cache_blocks)) {
            if (lane + layer + side == 0) count_error(p.errors, 0);
            continue;
        }
        u8* target = p.cache + layer * p.layer_stride + block * p.block_stride + side * p.side_stride;
        for (i64 byte = lane; byte < p.bytes; byte += p.lanes) target[byte] = 0;
    }
}

// --- slots ---------------------------------------------------------------------------------

struct Mapping {
    const i32* table;
    const i32* num_blocks;
    const i64* rows;
    const i64* positions;
    i64* slots;
    u64* errors;
    i64 tokens;
    i64 table_rows;
    i64 table_columns;
    i64 row_stride;
    i64 block_size;
    i64 ratio;
    i64 world;
    i64 rank;
    i64 interleave;
};

// The slot of each (row, position); −1 for row −1, and for a position that another rank holds.
//
// `block_size` is the manager's. Its blocks lie in the table as `ratio` kernel blocks each, in order. With `world`
// ranks a virtual block of `block_size · world` positions is dealt out `interleave` at a time; the host has
// checked that `ratio` divides the block size, and `interleave` too where there are several ranks.
KERNEL(compute_slot_mapping, Mapping) {
    const i64 small = p.block_size / p.ratio;
    EACH(token, p.tokens) {
        const i64 row = p.rows[token];
        p.slots[token] = -1;
        if (row == -1) continue;
        i64 column = p.positions[token];
        if (!inside(row, p.table_rows) || column < 0) {
            count_error(p.errors, 0);
            continue;
        }
        i64 local = take(column, p.block_size * p.world);
        const i64 within = take(local, p.interleave);
        const i64 holder = take(local, p.world);
        local = local * p.interleave + within;
        const i64 part = take(local, small);
        column = column * p.ratio + local;
        if (column >= p.num_blocks[row] || column >= p.table_columns)
            count_error(p.errors, 0);
        else if (holder == p.rank)
            p.slots[token] = (i64)p.table[row * p.row_stride + column] * small + part;
    }
}

// --- narrow floats -------------------------------------------------------------------------

// By bits on every build, so what is tested on a CPU is the GPU's arithmetic.

union Bits {
    u32 u;
    f32 f;
};
DEVICE f32 float_of(u32 bits) {
    Bits both;
    both.u = bits;
    return both.f;
}
DEVICE u32 bits_of(f32 value) {
    Bits both;
    both.f = value;
    return both.u;
}

// A float with a narrow exponent: `MANTISSA` bits behind an exponent of bias `BIAS`, sign cut off.
template <int MANTISSA, int BIAS>
DEVICE f32 widen(u32 magnitude) {
    const u32 bits = magnitude << (23 - MANTISSA);
    if (magnitude >> MANTISSA) return float_of(bits + ((127 - BIAS) << 23));
    // A subnormal: its mantissa as a fraction of the least normal number.
    return float_of(bits + ((128 - BIAS) << 23)) - float_of((u32)(128 - BIAS) << 23);
}

struct Half {
    u16 bits;
};
struct Brain {
    u16 bits;
};
struct Eight {
    u8 bits;
};

DEVICE f32 wide(f32 value) { return value; }
DEVICE f32 wide(Brain value) { return float_of((u32)value.bits << 16); }
DEVICE f32 wide(Half value) {
    const u32 sign = (u32)(value.bits & 0x8000) << 16;
    const u32 magnitude = value.bits & 0x7FFF;
    if (magnitude >= 0x7C00) return float_of(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    return float_of(sign | bits_of(widen<10, 15>(magnitude)));
}
DEVICE f32 wide(Eight value) {
    const u32 sign = (u32)(value.bits & 0x80) << 24;
    const u32 magnitude = value.bits & 0x7F;
    if (magnitude == 0x7F) return float_of(sign | 0x7FC00000);
    return float_of(sign | bits_of(widen<3, 7>(magnitude)));
}

// The nearest e4m3 number, ties to even; what is larger than 448 becomes 448, and a NaN stays one.
DEVICE u8 e4m3_of(f32 value) {
    const u32 bits = bits_of(value);
    const u32 sign = bits >> 24 & 0x80;
    const u32 magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return (u8)(sign | 0x7F);
    if (magnitude >= 0x43E00000) return (u8)(sign | 0x7E);
    if (magnitude < 0x3C800000)
        // Below 2^-6 the numbers are multiples of 2^-9, which is what lies at 2^14's last bit.
        return (u8)(sign | (bits_of(float_of(magnitude) + 16384.0f) - 0x46800000));
    const u32 rounded = magnitude + 0x7FFFF + (magnitude >> 20 & 1);
    return (u8)(sign | ((rounded >> 20) - ((127 - 7) << 3)));
}

struct Quantize {
    const void* tokens;
    u8* cache;
    const i64* slots;
    const f32* scales;
    u64* errors;
    i64 count;
    i64 sides;
    i64 layers;
    i64 heads;
    i64 units;
    i64 cache_blocks;
    i64 block_size;
    i64 token_stride;
    i64 token_layer_stride;
    i64 token_side_stride;
    i64 token_head_stride;
    i64 layer_stride;
    i64 block_stride;
    i64 side_stride;
    i64 offset_stride;
    i64 head_stride;
    i64 scale_side_stride;
    i64 scale_head_stride;
    i64 lanes;
};

template <class T>
DEVICE void quantize_and_cache(const Quantize& p) {
    EACH(item, p.count * p.sides * p.layers * p.lanes) {
        i64 token = item;
        const i64 lane = take(token, p.lanes);
        const i64 layer = take(token, p.layers);
        const i64 side = take(token, p.sides);
        i64 block = p.slots[token];
        if (!inside(block, p.cache_blocks * p.block_size)) {
            if (block != -1 && lane + layer + side == 0) count_error(p.errors, 0);
            continue;
        }
        const i64 offset = take(block, p.block_size);
        const T* source = (const T*)p.tokens + token * p.token_stride + layer * p.token_layer_stride +
                          side * p.token_side_stride;
        u8* target = p.cache + layer * p.layer_stride + block * p.block_stride + side * p.side_stride +
                     offset * p.offset_stride;
        for (i64 head = 0; head < p.heads; head++) {
            const f32 scale = p.scales[side * p.scale_side_stride + head * p.scale_head_stride];
            for (i64 unit = lane; unit < p.units; unit += p.lanes)
                target[head * p.head_stride + unit] = e4m3_of(wide(source[head * p.token_head_stride + unit]) / scale);
        }
    }
}

// `reshape_and_cache` into a cache of e4m3 bytes: each element is divided by its head's scale. Strides are in elements.
KERNEL(quantize_and_cache_f32, Quantize) { quantize_and_cache<f32>(p); }
KERNEL(quantize_and_cache_f16, Quantize) { quantize_and_cache<Half>(p); }
KERNEL(quantize_and_cache_bf16, Quantize) { quantize_and_cache<Brain>(p); }

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
