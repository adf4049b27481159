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

// False where nothing is to be moved: padding (−1), if there may be some, or a slot outside the cache, which is counted.
DEVICE bool find_part(const Tokens& p, i64 item, bool padded, Part& part) {
    part.token = item;
    part.lane = take(part.token, p.lanes);
    part.layer = take(part.token, p.layers);
    part.side = take(part.token, p.sides);
    part.slot = p.slots[part.token];
    if (!inside(part.slot, p.cache_blocks * p.block_size)) {
        if (!(padded && part.slot == -1) && part.lane + part.layer + part.side == 0) count_error(p.errors, 0);
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
        if (!find_part(p, item, true, part)) continue;
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
        if (!find_part(p, item, false, part)) continue;
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
    void* cache;
    const i64* blocks;
    u64* errors;
    i64 count;
    i64 sides;
    i64 layers;
    i64 units;
    i64 cache_blocks;
    i64 layer_stride;
    i64 block_stride;
    i64 side_stride;
    i64 lanes;
};

template <class U>
DEVICE void zero_blocks(const Zero& p) {
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
        U* target = (U*)p.cache + layer * p.layer_stride + block * p.block_stride + side * p.side_stride;
        for (i64 unit = lane; unit < p.units; unit += p.lanes) target[unit] = U();
    }
}

// Zeroes `units` units that lie together on each side of every layer of each block.
KERNEL(zero_blocks_1, Zero) { zero_blocks<u8>(p); }
KERNEL(zero_blocks_2, Zero) { zero_blocks<u16>(p); }
KERNEL(zero_blocks_4, Zero) { zero_blocks<u32>(p); }
KERNEL(zero_blocks_8, Zero) { zero_blocks<u64>(p); }
KERNEL(zero_blocks_16, Zero) { zero_blocks<u128>(p); }
