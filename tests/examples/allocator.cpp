// A paged KV-cache allocator with prefix caching for kvproof's stdio protocol: level 1, with steps. A block is
// keyed by its exact prefix (salt and tokens) when the step that filled it retires. Blocks of an ended life
// are held until its last step retires, then wait, keyed, for a hit or for reuse, the oldest first.
// With --fault a block that is recycled keeps its entry in the index.
#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <string>
#include <vector>
using std::string, std::to_string, std::vector;

// Messages come without spaces, and `"name":` cannot stand inside a JSON string: fields are found by search.
size_t field(const string &m, const string &name, size_t from = 0) {  // where its value begins, or npos
  size_t at = m.find('"' + name + "\":", from);
  return at == string::npos ? at : at + name.size() + 3;
}
long number(const string &m, const string &name) {  // 0 where absent
  size_t at = field(m, name);
  return at == string::npos ? 0 : m[at] == 't' ? 1 : std::strtol(&m[at], nullptr, 10);
}
string text(const string &m, size_t at) {  // escapes are kept as they are: strings are only compared
  size_t end = at + 1;
  if (at == string::npos) return "";
  while (m[end] != '"') end += m[end] == '\\' ? 2 : 1;
  return m.substr(at + 1, end - at - 1);
}
void numbers(const string &m, size_t at, vector<long> &out) {
  const char *next = &m[at];
  while (*next++ != ']' && *next != ']') out.push_back(std::strtol(next, const_cast<char **>(&next), 10));
}

string list(const vector<int> &row) {
  string text;
  for (int block : row) text += (text.empty() ? "" : ",") + to_string(block);
  return "[" + text + "]";
}

struct Request {
  vector<long> tokens;
  string salt;
  long limit = 0, scheduled = 0, expected = 0, fence = 0;  // expected: tokens known or being sampled
  vector<int> row;
  std::deque<long> stops;  // of the grants that have not retired
};

const char *HELLO = R"(true,"version":1,"name":"example in C++","capabilities":{"depth":3,"publish":"retire",)"
      R"("operations":["dispatch","abort","preempt"],"features":["chunks","lookahead","ahead","discards","salts"]})";

struct Allocator {
  bool fault, caching;
  long size, retired = 0;
  vector<int> holders;
  vector<string> key;
  std::map<string, int> index;
  std::deque<int> queue;  // free blocks
  std::map<string, Request> requests;
  std::deque<vector<int>> steps;  // in flight, and what is to be released when they retire

  Allocator(bool fault, const string &m = "")
      : fault(fault), caching(number(m, "prefix_caching")), size(number(m, "block_size")),
        holders(number(m, "blocks") + 1), key(holders.size()) {
    for (size_t block = 1; block < holders.size(); block++) queue.push_back(block);
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
    for (int block : hits) if (holders[block]++ == 0) queue.erase(std::find(queue.begin(), queue.end(), block));
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
  void dispatch(const string &m) {
    steps.emplace_back();
    for (size_t at = 0; (at = field(m, "request", at)) != string::npos;)
      requests[text(m, at)].fence = retired + steps.size();
  }
  void retire(const string &m) {
    for (size_t at = field(m, "request"), next; at != string::npos; at = next) {
      Request &r = requests[text(m, at)];
      next = field(m, "request", at);
      if (size_t sampled = field(m, "sampled", at); sampled < next) numbers(m, sampled, r.tokens);
      long full = std::min(r.stops.front(), long(r.tokens.size())) / size;
      r.stops.pop_front();
      for (long i = full; caching && i > 0 && key[r.row[i - 1]].empty(); i--)
        if (string name = prefix(r, i); index.emplace(name, r.row[i - 1]).second) key[r.row[i - 1]] = name;
    }
    release(steps.front()), steps.pop_front(), retired++;
  }
  void release(const vector<int> &row) {  // the end of a prefix is reused before its start
    for (auto block = row.rbegin(); block != row.rend(); block++)
      if (--holders[*block] == 0) queue.push_back(*block);
  }
  string answer(const string &m) {  // what follows `"ok":` in the reply
    string op = text(m, field(m, "op")), name = text(m, field(m, "request"));
    if (op == "hello") return HELLO;
    if (op == "configure") return *this = Allocator(fault, m), "true";
    if (op == "dispatch") return dispatch(m), "true";
    if (op == "retire") return retire(m), "true";
    Request &r = requests[name];
    if (op == "submit") r.salt = text(m, field(m, "salt")), r.limit = number(m, "limit");
    if (op == "submit") return numbers(m, field(m, "tokens"), r.tokens), "true";
    if (op == "row") return "true,\"row\":" + list(r.row);
    if (op == "admit" || op == "extend") {
      vector<int> hits = op == "admit" ? hit(r) : vector<int>();
      if (op == "admit") r.expected = r.tokens.size();
      if (!grant(r, number(m, "n"), number(m, "lookahead"), hits)) return "false";
      string hit = op == "admit" ? "\"hit\":" + to_string(hits.size() * size) + "," : "";
      return "true," + hit + "\"rows\":[" + list(r.row) + "]";
    }
    if (r.fence <= retired) release(r.row);
    else for (int block : r.row) steps[r.fence - retired - 1].push_back(block);
    r.row.clear(), r.stops.clear(), r.scheduled = r.fence = 0;
    if (op != "preempt") requests.erase(name);
    return "true";
  }
};

int main(int count, char **words) {
  std::ios::sync_with_stdio(false);
  Allocator allocator(count > 1 && string(words[1]) == "--fault");
  for (string line; std::getline(std::cin, line);)
    std::cout << "{\"ok\":" << allocator.answer(line) << "}\n" << std::flush;
}
