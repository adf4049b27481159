//! A paged KV-cache allocator with prefix caching for kvproof's stdio protocol: level 1, without steps. A block
//! is keyed by a chained hash (adapter, salt, tokens) when the step that filled it retires. Blocks of an ended
//! life are free at once, since the stream orders their reuse, and stay keyed until they are recycled.
//! With `--fault` the end of a life frees the blocks that it shares with others, too.
use std::collections::{hash_map::DefaultHasher, HashMap, VecDeque};
use std::hash::{Hash, Hasher};

// Messages come without spaces, and `"name":` cannot stand inside a JSON string: fields are found by search.
fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":");
    message.find(&key).map(|at| &message[at + key.len()..])
}
fn number(message: &str, name: &str) -> usize {
    let word = field(message, name).and_then(|text| text.split([',', '}']).next());
    word.and_then(|word| word.parse().ok()).unwrap_or(0) // what is absent is 0
}
fn quoted(value: &str) -> &str {
    let (mut end, bytes) = (1, value.as_bytes());
    while bytes[end] != b'"' { end += if bytes[end] == b'\\' { 2 } else { 1 } } // escapes are kept as they are
    &value[1..end]
}
fn text<'a>(message: &'a str, name: &str) -> &'a str {
    field(message, name).map_or("", quoted)
}
fn tokens(message: &str, name: &str) -> Vec<i64> {
    let list = field(message, name).and_then(|value| value[1..].split(']').next()).unwrap_or("");
    list.split(',').filter_map(|word| word.parse().ok()).collect()
}
fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Default)]
struct Request {
    tokens: Vec<i64>,
    root: u64, // of its chain of hashes
    limit: usize,
    scheduled: usize,
    expected: usize, // tokens known or being sampled
    row: Vec<usize>,
    stops: VecDeque<usize>, // of the grants that have not retired
}

#[derive(Default)]
struct Allocator {
    fault: bool,
    caching: bool,
    size: usize,
    holders: Vec<usize>,
    key: Vec<Option<u64>>,
    free: VecDeque<usize>, // the oldest first
    index: HashMap<u64, usize>,
    requests: HashMap<String, Request>,
}

impl Allocator {
    fn keys(&self, request: &Request, tokens: usize) -> Vec<u64> {
        let blocks = request.tokens[..tokens].chunks_exact(self.size);
        let next = |parent: &mut u64, block| { *parent = hash((*parent, block)); Some(*parent) };
        blocks.scan(request.root, next).collect()
    }
    fn hit(&self, request: &Request) -> Vec<usize> {
        let keys = self.keys(request, request.tokens.len() - 1);
        keys.iter().map_while(|key| self.index.get(key).copied()).collect()
    }
    fn grant(&mut self, request: &mut Request, hits: &[usize], n: usize, lookahead: usize) -> bool {
        let stop = (request.scheduled + hits.len() * self.size + n).min(request.expected).min(request.limit);
        let needed = (stop + lookahead).min(request.limit).div_ceil(self.size);
        let fresh = needed.saturating_sub(request.row.len() + hits.len());
        if fresh + self.free.iter().filter(|block| hits.contains(block)).count() > self.free.len() { return false }
        self.free.retain(|block| !hits.contains(block));
        let recycled: Vec<_> = self.free.drain(..fresh).collect();
        for key in recycled.iter().filter_map(|&block| self.key[block].take()) { self.index.remove(&key); }
        hits.iter().chain(&recycled).for_each(|&block| self.holders[block] += 1);
        request.row.extend(hits.iter().chain(&recycled));
        request.stops.push_back(stop);
        request.scheduled = stop;
        request.expected += usize::from(stop == request.expected && stop < request.limit);
        true
    }
    fn retire(&mut self, output: &str) { // what follows `"request":` in one output
        let mut request = self.requests.remove(quoted(output)).unwrap();
        request.tokens.extend(tokens(output, "sampled"));
        let written = request.stops.pop_front().unwrap().min(request.tokens.len());
        for (key, &block) in self.keys(&request, written).into_iter().zip(&request.row) {
            if self.caching && self.key[block].is_none() && !self.index.contains_key(&key) {
                self.key[block] = Some(key);
                self.index.insert(key, block);
            }
        }
        self.requests.insert(quoted(output).into(), request);
    }
    fn release(&mut self, row: &[usize]) {
        for &block in row.iter().rev() {
            self.holders[block] -= 1;
            if self.holders[block] == 0 || self.fault { self.free.push_back(block) }
        }
    }
    fn configure(&mut self, message: &str) {
        let (blocks, size) = (number(message, "blocks"), number(message, "block_size"));
        let (holders, key, free) = (vec![0; blocks + 1], vec![None; blocks + 1], (1..=blocks).collect());
        let (fault, caching) = (self.fault, message.contains("\"prefix_caching\":true"));
        *self = Allocator { fault, caching, size, holders, key, free, ..Default::default() };
    }
    fn answer(&mut self, op: &str, message: &str) -> String { // what follows `"ok":` in the reply
        let name = text(message, "request");
        let mut request = self.requests.remove(name).unwrap_or_default();
        let mut answer = "true".to_string();
        if op == "submit" {
            request.root = hash((field(message, "adapter"), text(message, "salt"))); // no field but salt follows
            (request.tokens, request.limit) = (tokens(message, "tokens"), number(message, "limit"));
        } else if op == "row" {
            answer += &format!(",\"row\":{:?}", request.row);
        } else if op == "admit" || op == "extend" {
            let mut hits = Vec::new();
            if op == "admit" {
                (hits, request.expected) = (self.hit(&request), request.tokens.len());
                answer += &format!(",\"hit\":{}", hits.len() * self.size);
            }
            let granted = self.grant(&mut request, &hits, number(message, "n"), number(message, "lookahead"));
            answer = if granted { format!("{answer},\"rows\":[{:?}]", request.row) } else { "false".into() };
        } else { // preempt, finish, abort
            self.release(&request.row);
            request = Request { scheduled: 0, row: vec![], stops: VecDeque::new(), ..request };
        }
        if op != "finish" && op != "abort" { self.requests.insert(name.into(), request); }
        answer
    }
}

const HELLO: &str = r#"true,"version":1,"name":"example in Rust","capabilities":{"depth":3,"publish":"retire","#;
const ABLE: &str = r#""stream_ordered":true,"operations":["abort","preempt"],"features":["chunks","ahead","discards","#;

fn main() {
    let mut allocator = Allocator { fault: std::env::args().any(|word| word == "--fault"), ..Default::default() };
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let mut answer = "true".to_string();
        match text(&line, "op") {
            "hello" => answer = format!("{HELLO}{ABLE}\"lookahead\",\"adapters\",\"salts\"]}}"),
            "configure" => allocator.configure(&line),
            "retire" => line.split("\"request\":").skip(1).for_each(|part| allocator.retire(part)),
            op => answer = allocator.answer(op, &line),
        }
        println!("{{\"ok\":{answer}}}");
    }
}
