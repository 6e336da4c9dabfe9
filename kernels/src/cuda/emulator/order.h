// Whether work of different streams is ordered where one copies what the other writes. Work is done here as soon as it is
// asked for, so a wait that is missing changes no number; it is found by what each stream is known to come after: how far all
// others were when an event that it waits for was recorded, or when the host had waited for them.
#pragma once
#include <map>
#include <vector>

namespace order {
// How far each stream is known to be.
struct Clock {
    std::map<int, unsigned long> at;
    void join(const Clock &other) {
        for (auto &[stream, time] : other.at) at[stream] = at[stream] > time ? at[stream] : time;
    }
    bool has(int stream, unsigned long time) const {
        auto found = at.find(stream);
        return found != at.end() && found->second >= time;
    }
};
struct Line { int id; Clock seen; };
// What was done with a part of memory, by which stream, when; `copy`: between places of cards.
struct Access { int stream; unsigned long time; unsigned long long from, to; bool write, copy; };

inline Clock host;
inline int lines;

// The stream is asked for something.
inline unsigned long step(Line &line) {
    line.seen.join(host);
    return ++line.seen.at[line.id];
}

// Notes an access; whether it is ordered with all before it that it may not run beside.
inline bool touch(std::vector<Access> &before, Line &line, unsigned long long from, unsigned long long to, bool write, bool copy) {
    unsigned long now = line.seen.at[line.id];
    std::vector<Access> kept;
    for (const Access &old : before) {
        bool meets = old.from < to && from < old.to && (old.write || write);
        bool known = line.seen.has(old.stream, old.time);
        if (meets && !known && (old.copy || copy)) return false;
        // What comes after this comes after that.
        bool covered = known && from <= old.from && old.to <= to && (write || (old.stream == line.id && !old.write));
        if (!covered) kept.push_back(old);
    }
    kept.push_back({line.id, now, from, to, write, copy});
    before.swap(kept);
    return true;
}

// Whether the host knows that all copies from or to memory are over.
inline bool at_rest(const std::vector<Access> &before) {
    for (const Access &old : before)
        if (old.copy && !host.has(old.stream, old.time)) return false;
    return true;
}
}
