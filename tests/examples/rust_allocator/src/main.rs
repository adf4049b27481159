//! A paged KV-cache allocator with prefix caching that speaks kvproof's stdio protocol: level 1, without steps.
//!
//! A block is keyed by a chained hash (adapter, salt, tokens) when the step that filled it retires. The blocks
//! of an ended life are free at once, since the stream orders their reuse; they stay keyed until then.
//! With `--fault` the end of a life frees the blocks that it shares with others, too.
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, Write};

// Messages come without spaces, and `"name":` cannot stand inside a JSON string: fields are found by search.
fn field<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":");
    message.find(&key).map(|at| &message[at + key.len()..])
}

fn number(message: &str, name: &str) -> usize {
    let digits = |text: &str| text.split([',', '}']).next().and_then(|word| word.parse().ok());
    field(message, name).and_then(digits).unwrap_or(0) // what is absent is 0
}

fn text<'a>(message: &'a str, name: &str) -> &'a str {
    let Some(value) = field(message, name) else { return "" };
    let (mut end, bytes) = (1, value.as_bytes());
    while bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 } // escapes are kept: strings are only compared
    }
    &value[1..end]
}

fn tokens(message: &str, name: &str) -> Vec<i64> {
    let list = field(message, name).map_or("", |value| value[1..].split(']').next().unwrap());
    list.split(',').filter_map(|word| word.parse().ok()).collect()
}

#[derive(Default)]
struct Request {
    tokens: Vec<i64>,
    root: u64,         // the hash of what every position depends on
    reads: bool,       // whether it may hit
    limit: usize,
    scheduled: usize,
    expected: usize,   // tokens known or being sampled
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
    free: VecDeque<usize>, // least recently used first
    index: HashMap<u64, usize>,
    requests: HashMap<String, Request>,
}

impl Allocator {
    fn keys(&self, request: &Request, tokens: usize) -> Vec<u64> {
        let chain = request.tokens[..tokens].chunks_exact(self.size).scan(request.root, |parent, block| {
            let mut hasher = DefaultHasher::new();
            (*parent, block).hash(&mut hasher);
            *parent = hasher.finish();
            Some(*parent)
        });
        chain.collect()
    }

    fn hit(&self, request: &Request) -> Vec<usize> {
        let most = if self.caching && request.reads { request.tokens.len() - 1 } else { 0 };
        self.keys(request, most).iter().map_while(|key| self.index.get(key).copied()).collect()
    }

    fn grant(&mut self, request: &mut Request, hits: &[usize], n: usize, lookahead: usize) -> bool {
        let start = request.scheduled + hits.len() * self.size;
        let stop = (start + n).min(request.expected).min(request.limit);
        let needed = (stop + lookahead).min(request.limit).div_ceil(self.size);
        let fresh = needed.saturating_sub(request.row.len() + hits.len());
        if fresh + hits.iter().filter(|&&block| self.holders[block] == 0).count() > self.free.len() {
            return false;
        }
        self.free.retain(|block| !hits.contains(block));
        request.row.extend(hits);
        for _ in 0..fresh {
            let block = self.free.pop_front().unwrap();
            if let Some(key) = self.key[block].take() {
                self.index.remove(&key);
            }
            request.row.push(block);
        }
        let first = request.row.len() - fresh - hits.len();
        request.row[first..].iter().for_each(|&block| self.holders[block] += 1);
        request.stops.push_back(stop);
        request.scheduled = stop;
        request.expected += usize::from(stop == request.expected && stop < request.limit);
        true
    }

    fn retire(&mut self, output: &str) {
        let Some(mut request) = self.requests.remove(text(output, "request")) else { return };
        request.tokens.extend(tokens(output, "sampled"));
        let written = request.stops.pop_front().unwrap().min(request.tokens.len());
        for (key, &block) in self.keys(&request, written).into_iter().zip(&request.row) {
            if self.caching && self.key[block].is_none() && !self.index.contains_key(&key) {
                self.key[block] = Some(key);
                self.index.insert(key, block);
            }
        }
        self.requests.insert(text(output, "request").to_string(), request);
    }

    fn release(&mut self, row: &[usize]) {
        for &block in row.iter().rev() {
            self.holders[block] -= 1;
            if self.holders[block] == 0 || self.fault {
                self.free.push_back(block);
            }
        }
    }

    /// What follows `"ok":` in the reply.
    fn answer(&mut self, op: &str, message: &str) -> String {
        let name = text(message, "request");
        let mut request = self.requests.remove(name).unwrap_or_default();
        let mut answer = "true".to_string();
        match op {
            "submit" => {
                let mut hasher = DefaultHasher::new();
                (field(message, "adapter"), text(message, "salt")).hash(&mut hasher); // no field but salt follows
                let reads = field(message, "read_cache").is_none();
                request = Request { root: hasher.finish(), reads, ..Default::default() };
                (request.tokens, request.limit) = (tokens(message, "tokens"), number(message, "limit"));
            }
            "row" => answer = format!("true,\"row\":{:?}", request.row),
            "lookup" => {
                let hits = self.hit(&request);
                answer = format!("true,\"hit\":{},\"rows\":[{hits:?}]", hits.len() * self.size);
            }
            "admit" | "extend" => {
                let hits = if op == "admit" { self.hit(&request) } else { Vec::new() };
                if op == "admit" {
                    request.expected = request.tokens.len();
                    answer += &format!(",\"hit\":{}", hits.len() * self.size);
                }
                let granted = self.grant(&mut request, &hits, number(message, "n"), number(message, "lookahead"));
                answer = if granted { format!("{answer},\"rows\":[{:?}]", request.row) } else { "false".into() };
            }
            _ => {
                self.release(&std::mem::take(&mut request.row));
                (request.stops, request.scheduled) = (VecDeque::new(), 0);
                if op != "preempt" {
                    return answer;
                }
            }
        }
        self.requests.insert(name.to_string(), request);
        answer
    }
}

const HELLO: &str = r#"true,"version":1,"name":"example in Rust","capabilities":{"depth":3,"publish":"retire",
"stream_ordered":true,"operations":["lookup","abort","preempt","reset"],
"features":["lookahead","discards","adapters","salts","opt_out"]}"#;

fn main() {
    let fault = std::env::args().any(|word| word == "--fault");
    let mut allocator = Allocator::default();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match text(&line, "op") {
            "hello" => HELLO.replace('\n', ""),
            "configure" => {
                let (blocks, size) = (number(&line, "blocks"), number(&line, "block_size"));
                let caching = line.contains("\"prefix_caching\":true");
                allocator = Allocator { fault, caching, size, ..Default::default() };
                (allocator.holders, allocator.key) = (vec![0; blocks + 1], vec![None; blocks + 1]);
                allocator.free.extend(1..=blocks);
                "true".into()
            }
            "retire" => {
                let starts: Vec<_> = line.match_indices("\"request\":").map(|found| found.0).chain([line.len()]).collect();
                starts.windows(2).for_each(|part| allocator.retire(&line[part[0]..part[1]]));
                "true".into()
            }
            "reset" if allocator.free.len() + 1 < allocator.key.len() => "false".into(),
            "reset" => {
                allocator.key.fill(None);
                allocator.index.clear();
                "true".into()
            }
            op => allocator.answer(op, &line),
        };
        let mut out = io::stdout().lock();
        out.write_all(format!("{{\"ok\":{answer}}}\n").as_bytes()).and_then(|_| out.flush()).unwrap();
    }
}
