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

// A NaN keeps its sign. One that a division makes has a sign on some processors and none on others: here it has none.
DEVICE f32 divided(f32 value, f32 scale) {
    const f32 quotient = value / scale;
    if (quotient == quotient) return quotient;
    return value != value ? value : float_of(0x7FC00000);
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
                target[head * p.head_stride + unit] =
                    e4m3_of(divided(wide(source[head * p.token_head_stride + unit]), scale));
        }
    }
}

// `reshape_and_cache` into a cache of e4m3 bytes: each element is divided by its head's scale. Strides are in elements.
KERNEL(quantize_and_cache_f32, Quantize) { quantize_and_cache<f32>(p); }
KERNEL(quantize_and_cache_f16, Quantize) { quantize_and_cache<Half>(p); }
KERNEL(quantize_and_cache_bf16, Quantize) { quantize_and_cache<Brain>(p); }
