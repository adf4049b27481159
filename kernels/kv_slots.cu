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

// The slot of each (row, position); −1 for row −1, and for a position that another rank holds. An entry below 0 names
// no block: its slot would be another block's, or padding.
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
        else if (holder == p.rank) {
            const i64 block = p.table[row * p.row_stride + column];
            if (block < 0)
                count_error(p.errors, 0);
            else
                p.slots[token] = block * small + part;
        }
    }
}
