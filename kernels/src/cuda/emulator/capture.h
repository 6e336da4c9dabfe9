// Work of one stream or several that is recorded, and run again later. The first stream begins; others are recorded with it from
// when they wait for what one that is recorded marked, and whoever began must have waited for all of them when it ends. What
// waits for what is all the order that work has when it runs: it runs as it was recorded, and `order.h` finds what is missing.
#pragma once
#include "order.h"

#include <functional>
#include <map>
#include <vector>

namespace capture {
class Graph;

// What was marked in a stream while it was recorded: in which recording, as which mark, behind what.
struct Mark { unsigned long recording = 0; size_t number = 0; order::Clock seen = {}; };

class Recording {
  public:
    const unsigned long number;
    bool broken = false;

    Recording(unsigned long number, void *first) : number(number) { line(first); }

    void *begun_by() const { return streams[0]; }
    void add(void *stream, std::function<void(order::Line &)> run) {
        int at = line(stream);
        lines[at].seen.at[at]++;
        work.push_back({Kind::run, at, 0, std::move(run)});
    }
    Mark mark(void *stream) {
        int at = line(stream);
        work.push_back({Kind::mark, at, marks, {}});
        return {number, marks++, lines[at].seen};
    }
    void wait(void *stream, const Mark &mark) {
        int at = line(stream);
        lines[at].seen.join(mark.seen);
        work.push_back({Kind::wait, at, mark.number, {}});
    }
    // Whether the first stream comes after all work of all others.
    bool is_joined() const {
        for (size_t at = 1; at < lines.size(); at++)
            if (auto last = lines[at].seen.at.find(at); last != lines[at].seen.at.end() && !lines[0].seen.has(at, last->second))
                return false;
        return true;
    }

  private:
    friend class Graph;
    enum class Kind { run, mark, wait };
    struct Node { Kind kind; int line; size_t mark; std::function<void(order::Line &)> run; };
    std::vector<void *> streams;
    std::vector<order::Line> lines;
    std::vector<Node> work;
    size_t marks = 0;

    int line(void *stream) {
        for (size_t at = 0; at < streams.size(); at++)
            if (streams[at] == stream) return at;
        streams.push_back(stream);
        lines.push_back({(int)lines.size(), {}});
        return lines.size() - 1;
    }
};

// A recording that can be run. Its streams are lines of its own, whatever the streams do that it was recorded from.
class Graph {
  public:
    explicit Graph(const Recording &recording) : work(recording.work), marks(recording.marks) {
        for (size_t i = 0; i < recording.lines.size(); i++) lines.push_back(spare_line());
    }
    Graph(const Graph &) = delete;
    // Lines of which the host has waited for all are had by the next, or clocks would grow with each recording.
    ~Graph() {
        for (auto &line : lines)
            if (unsigned long last = line.seen.at[line.id]; order::host.has(line.id, last) || !last) spare.push_back({line.id, last});
    }
    // Behind all that the stream was asked for, which then comes after all of it.
    void run(order::Line &stream) {
        for (auto &line : lines) line.seen.join(stream.seen);
        for (auto &node : work) {
            order::Line &line = lines[node.line];
            order::step(line);
            if (node.kind == Recording::Kind::run) node.run(line);
            if (node.kind == Recording::Kind::mark) marks[node.mark] = line.seen;
            if (node.kind == Recording::Kind::wait) line.seen.join(marks[node.mark]);
        }
        for (auto &line : lines) stream.seen.join(line.seen);
    }

  private:
    std::vector<Recording::Node> work;
    std::vector<order::Clock> marks;
    std::vector<order::Line> lines;
    static inline std::vector<std::pair<int, unsigned long>> spare;

    static order::Line spare_line() {
        if (spare.empty()) return {++order::lines, {}, true};
        auto [id, last] = spare.back();
        spare.pop_back();
        order::Line line = {id, {}, true};
        line.seen.at[id] = last;
        return line;
    }
};
}
