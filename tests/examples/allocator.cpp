// A paged KV-cache allocator with prefix caching that speaks kvproof's stdio protocol: level 1, with steps.
//
// A block is keyed by its exact prefix (salt and tokens) when the step that filled it retires. It is held by
// lives and by steps in flight; without a holder it waits in the queue, still keyed, for a hit or for reuse,
// the least recently used one first. Build: g++ -O2 -std=c++17 -o allocator allocator.cpp
// With --fault a block that is recycled keeps its entry in the index.
#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <string>
#include <vector>
using std::string, std::to_string, std::vector;

struct Json {  // integers, true as 1, strings, arrays, objects (items with names): all that the protocol uses
  long number = 0;
  string name, text;
  vector<Json> items;
  const Json &operator[](const char *wanted) const {  // what is absent is 0 or empty
    static const Json nothing;
    for (const Json &item : items)
      if (item.name == wanted) return item;
    return nothing;
  }
};

string quoted(const char *&at) {  // escapes are kept as they are: strings are only compared
  const char *start = ++at;
  while (*at != '"') at += *at == '\\' ? 2 : 1;
  return string(start, at++ - start);
}

Json parse(const char *&at) {
  Json value;
  if (*at == '"') {
    value.text = quoted(at);
  } else if (*at == '[' || *at == '{') {
    for (bool named = *at++ == '{'; *at != ']' && *at != '}'; at += *at == ',') {
      string name = named ? quoted(at) : "";
      value.items.push_back(parse(at += named));
      value.items.back().name = name;
    }
    at++;
  } else if (*at == 't' || *at == 'f') {
    value.number = *at == 't';
    at += *at == 't' ? 4 : 5;
  } else {
    value.number = std::strtol(at, const_cast<char **>(&at), 10);
  }
  return value;
}

struct Request {
  vector<long> tokens;
  string salt;
  long limit = 0, scheduled = 0, expected = 0;  // expected: tokens known or being sampled
  vector<int> row;
  std::deque<long> stops;  // of the grants that have not retired
};

struct Allocator {
  bool fault = false, caching = false;
  long size = 1;
  vector<int> holders;
  vector<string> key;
  std::deque<int> queue;
  std::map<string, int> index;
  std::map<string, Request> requests;
  std::deque<vector<int>> steps;  // the blocks that they hold

  string prefix(const Request &r, long blocks) const {
    string text = r.salt + '"';
    for (long i = 0; i < blocks * size; i++) text += to_string(r.tokens[i]) + ',';
    return text;
  }
  vector<int> hit(const Request &r) const {
    vector<int> blocks;
    while (caching && long(blocks.size() + 1) * size < long(r.tokens.size())) {
      auto found = index.find(prefix(r, blocks.size() + 1));
      if (found == index.end()) break;
      blocks.push_back(found->second);
    }
    return blocks;
  }
  bool grant(Request &r, long n, long lookahead, const vector<int> &hits) {
    long stop = std::min({r.scheduled + long(hits.size()) * size + n, r.expected, r.limit});
    long slots = std::min(stop + lookahead, r.limit), held = r.row.size() + hits.size();
    long fresh = std::max(0L, (slots + size - 1) / size - held), free = queue.size();
    for (int block : hits) free -= holders[block] == 0;
    if (fresh > free) return false;
    for (int block : hits)
      if (holders[block]++ == 0) queue.erase(std::find(queue.begin(), queue.end(), block));
    r.row.insert(r.row.end(), hits.begin(), hits.end());
    for (; fresh > 0; fresh--) {
      int block = queue.front();
      queue.pop_front(), holders[block] = 1, r.row.push_back(block);
      if (!fault) index.erase(key[block]);
      key[block].clear();
    }
    r.scheduled = stop, r.stops.push_back(stop);
    r.expected += stop == r.expected && stop < r.limit;
    return true;
  }
  void release(const vector<int> &row) {  // the end of a prefix is reused before its start
    for (auto block = row.rbegin(); block != row.rend(); block++)
      if (--holders[*block] == 0) queue.push_back(*block);
  }
  void retire(const Json &m) {
    for (const Json &output : m["outputs"].items) {
      Request &r = requests[output["request"].text];
      for (const Json &token : output["sampled"].items) r.tokens.push_back(token.number);
      long full = std::min(r.stops.front(), long(r.tokens.size())) / size;
      r.stops.pop_front();
      for (long i = full; caching && i > 0 && key[r.row[i - 1]].empty(); i--)
        if (string name = prefix(r, i); index.emplace(name, r.row[i - 1]).second) key[r.row[i - 1]] = name;
    }
    release(steps.front()), steps.pop_front();
  }
};

string row(const vector<int> &blocks) {
  string text;
  for (int block : blocks) text += (text.empty() ? "" : ",") + to_string(block);
  return "[" + text + "]";
}

string answer(Allocator &a, const Json &m) {  // what follows `"ok":` in the reply
  const string &op = m["op"].text, name = m["request"].text;
  if (op == "hello")
    return R"(true,"version":1,"name":"example in C++","capabilities":{"depth":3,"publish":"retire","operations":)"
           R"(["dispatch","lookup","abort","preempt"],"features":["chunks","lookahead","discards","salts"]})";
  if (op == "configure") {
    a = Allocator{a.fault, m["prefix_caching"].number != 0, m["block_size"].number};
    a.holders.resize(m["blocks"].number + 1), a.key.resize(a.holders.size());
    for (int block = 1; block <= m["blocks"].number; block++) a.queue.push_back(block);
  } else if (op == "dispatch") {
    a.steps.emplace_back();
    for (const Json &entry : m["entries"].items)
      for (int block : a.requests[entry["request"].text].row) a.holders[block]++, a.steps.back().push_back(block);
  } else if (op == "retire") {
    a.retire(m);
  } else if (op == "submit") {
    Request &r = a.requests[name] = Request{{}, m["salt"].text, m["limit"].number};
    for (const Json &token : m["tokens"].items) r.tokens.push_back(token.number);
  } else if (Request &r = a.requests[name]; op == "row") {
    return "true,\"row\":" + row(r.row);
  } else if (op == "lookup" || op == "admit" || op == "extend") {
    vector<int> hits = op == "extend" ? vector<int>() : a.hit(r);
    if (op == "admit") r.expected = r.tokens.size();
    if (op != "lookup" && !a.grant(r, m["n"].number, m["lookahead"].number, hits)) return "false";
    string hit = op == "extend" ? "" : "\"hit\":" + to_string(hits.size() * a.size) + ",";
    return "true," + hit + "\"rows\":[" + row(op == "lookup" ? hits : r.row) + "]";
  } else {  // preempt, finish, abort
    a.release(r.row);
    r = Request{r.tokens, r.salt, r.limit};
    if (op != "preempt") a.requests.erase(name);
  }
  return "true";
}

int main(int count, char **words) {
  Allocator allocator{count > 1 && string(words[1]) == "--fault"};
  std::ios::sync_with_stdio(false);
  for (string line; std::getline(std::cin, line);) {
    const char *at = line.c_str();
    std::cout << "{\"ok\":" << answer(allocator, parse(at)) << "}\n" << std::flush;
  }
}
