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
// `recorded`: what a recording has of a stream, which comes after what the recording was started behind, and no more.
struct Line { int id; Clock seen; bool recorded = false; };
// What memory is used by: a kernel, a copy between places of cards, one from or to the host.
enum class Use { kernel, copy, host };
// What was done with a part of memory, by which stream, when.
struct Access { int stream; unsigned long time; unsigned long long from, to; bool write; Use use; bool recorded; };

inline Clock host;
inline int lines;

// The stream is asked for something.
inline unsigned long step(Line &line) {
    line.seen.join(host);
    return ++line.seen.at[line.id];
}

// Whether two uses of the same memory have to be ordered. Of kernels only where their memory begins is known; so those of a card
// are taken to know what they do, but for what a step is told before it is run from a recording.
inline bool matters(const Access &one, const Access &other) {
    return one.use == Use::copy || other.use == Use::copy || (one.use == Use::host && other.recorded) ||
           (one.recorded && other.use == Use::host);
}

// Notes an access; whether it is ordered with all before it that it may not run beside.
inline bool touch(std::vector<Access> &before, Line &line, unsigned long long from, unsigned long long to, bool write, Use use) {
    Access now = {line.id, line.seen.at[line.id], from, to, write, use, line.recorded};
    std::vector<Access> kept;
    for (const Access &old : before) {
        bool meets = old.from < to && from < old.to && (old.write || write);
        bool known = line.seen.has(old.stream, old.time);
        if (meets && !known && matters(old, now)) return false;
        // What comes after this comes after that, whichever stream it was in: of reads the last is enough.
        bool alike = !old.write && old.use == use && old.recorded == line.recorded;
        bool covered = known && from <= old.from && old.to <= to && (write || (old.stream == line.id && !old.write) || alike);
        if (!covered) kept.push_back(old);
    }
    kept.push_back(now);
    before.swap(kept);
    return true;
}

// Whether the host knows that all copies from or to memory are over.
inline bool at_rest(const std::vector<Access> &before) {
    for (const Access &old : before)
        if (old.use == Use::copy && !host.has(old.stream, old.time)) return false;
    return true;
}
}
