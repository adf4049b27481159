// A paged KV-cache allocator with prefix caching that speaks kvproof's stdio protocol: level 1, with steps.
//
// A block is keyed by its exact prefix (salt and tokens) when the step that filled it retires. Blocks of an
// ended life stay held until its last step has retired; then they wait in the queue, still keyed, for a hit
// or for reuse, the least recently used one first.
//   g++ -O2 -std=c++17 -o allocator allocator.cpp
// With --fault a block that is recycled keeps its entry in the index.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <list>
#include <map>
#include <string>
#include <vector>
using std::string, std::vector, std::to_string;

struct Json {  // integers, true as 1, strings, arrays, objects: all that the protocol uses
  long number = 0;
  string text;
  vector<Json> items;
  std::map<string, Json> fields;
  const Json &operator[](const char *name) const {  // what is absent is 0 or empty
    static const Json nothing;
    auto found = fields.find(name);
    return found == fields.end() ? nothing : found->second;
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
  } else if (*at == '[') {
    for (at++; *at != ']'; at += *at == ',') value.items.push_back(parse(at));
    at++;
  } else if (*at == '{') {
    for (at++; *at != '}'; at += *at == ',') {
      string name = quoted(at);
      value.fields[name] = parse(++at);
    }
    at++;
  } else if (*at == 't' || *at == 'f') {
    value.number = *at == 't';
    at += *at == 't' ? 4 : 5;
  } else {
    value.number = strtol(at, const_cast<char **>(&at), 10);
  }
  return value;
}

struct Request {
  vector<long> tokens;
  string salt;
  long limit = 0, scheduled = 0, expected = 0, fence = 0;  // expected: tokens known or being sampled
  vector<int> row;
  std::deque<long> stops;  // of the grants that have not retired
};

struct Allocator {
  long size = 1, retired = 0;
  bool caching = false, fault = false;
  vector<int> holders;
  vector<string> key;
  std::list<int> queue;
  vector<std::list<int>::iterator> place;  // in the queue
  std::map<string, int> index;
  std::map<string, Request> requests;
  vector<std::pair<long, vector<int>>> deferred;  // rows that wait for a step to retire

  void configure(const Json &m) {
    size = m["block_size"].number, caching = m["prefix_caching"].number;
    long count = m["blocks"].number + 1;
    holders.resize(count), key.resize(count), place.resize(count);
    for (int block = 1; block < count; block++) place[block] = queue.insert(queue.end(), block);
  }
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
      if (holders[block]++ == 0) queue.erase(place[block]);
    r.row.insert(r.row.end(), hits.begin(), hits.end());
    for (; fresh > 0; fresh--) {
      int block = queue.front();
      queue.pop_front(), holders[block] = 1, r.row.push_back(block);
      if (!fault && !key[block].empty()) index.erase(key[block]);
      key[block].clear();
    }
    r.scheduled = stop, r.stops.push_back(stop);
    r.expected += stop == r.expected && stop < r.limit;
    return true;
  }
  void release(const vector<int> &row) {  // the end of a prefix is reused before its start
    for (auto block = row.rbegin(); block != row.rend(); block++)
      if (--holders[*block] == 0) place[*block] = queue.insert(queue.end(), *block);
  }
  void retire(const Json &m) {
    retired = m["step"].number;
    for (const Json &output : m["outputs"].items) {
      Request &r = requests[output["request"].text];
      for (const Json &token : output["sampled"].items) r.tokens.push_back(token.number);
      long full = std::min(r.stops.front(), long(r.tokens.size())) / size;
      r.stops.pop_front();
      for (long i = full; caching && i > 0 && key[r.row[i - 1]].empty(); i--)
        if (string name = prefix(r, i); index.emplace(name, r.row[i - 1]).second) key[r.row[i - 1]] = name;
    }
    auto done = [this](auto &each) { return each.first <= retired ? release(each.second), true : false; };
    deferred.erase(std::remove_if(deferred.begin(), deferred.end(), done), deferred.end());
  }
  void end(Request &r) {
    if (r.fence > retired) deferred.push_back({r.fence, r.row}); else release(r.row);
    r.row.clear(), r.stops.clear(), r.scheduled = r.fence = 0;
  }
};

string list(const vector<int> &row) {
  string text;
  for (int block : row) text += (text.empty() ? "" : ",") + to_string(block);
  return "[" + text + "]";
}

string answer(Allocator &a, const Json &m) {  // the rest of a reply behind "ok"
  const string &op = m["op"].text, &name = m["request"].text;
  if (op == "hello")
    return "true,\"version\":1,\"name\":\"example in C++\",\"capabilities\":{\"publish\":\"retire\",\"depth\":3,"
           "\"operations\":[\"dispatch\",\"lookup\",\"abort\",\"preempt\"],"
           "\"features\":[\"chunks\",\"lookahead\",\"discards\",\"salts\"]}";
  Request &r = a.requests[name];
  if (op == "configure") {
  }
}
