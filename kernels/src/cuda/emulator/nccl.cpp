// What stands in for libnccl.so, on the cards of the stand-in for the driver, of which it is a part: exchanges between cards
// that one thread asks for. Work is done when its group ends. What NCCL would wait for without end, or would do with another
// card's memory, ends the process with a sentence. TSNODE_EMULATED_NCCL says what it is like, and tests say otherwise:
//   absent  it does not start, as if there were none (so it is where nothing is said)
//   used    as it should be; copies between cards are slow
//   greedy  the same, and takes a GiB of each card
//   slow    exchanges are
//   wrong   a byte arrives as another
//   broken  a group fails, and leaves cards waiting for one that was never asked
//   lost    a group never ends, and NCCL knows why
//   hangs   a group never ends
//   stuck   asking for a group never ends
//   late    starting never does

namespace {
namespace nccl {
std::string at_first = getenv("TSNODE_EMULATED_NCCL") ? getenv("TSNODE_EMULATED_NCCL") : "absent", like = at_first;
unsigned long exchanges;
bool works() { return like == "used" || like == "greedy"; }
// One card's part of some that know each other. It fails with `meanwhile` once somebody asks.
struct Member { int clique, device, rank, ranks, meanwhile; bool aborted; std::set<Stream *> hanging; };
struct Asked { bool send; unsigned long long at; size_t bytes; int peer; Member *member; Stream *stream; };
using Pairs = std::vector<std::pair<Asked, Asked>>;
std::set<void *> members;
thread_local int depth;
thread_local std::vector<Asked> group;

constexpr int UNHANDLED = 1, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6;

bool is_there() {
    return std::any_of(members.begin(), members.end(), [](void *member) { return !((Member *)member)->aborted; });
}
Member *known(void *member) {
    if (!members.count(member)) refuse("a communicator that is none, or was given back");
    return (Member *)member;
}
int ask(bool send, unsigned long long at, size_t bytes, int type, int peer, void *communicator, void *stream) {
    Member *member = known(communicator);
    if (!depth) refuse("an exchange outside of a group, which would wait for a card that nobody has asked");
    if (member->aborted) refuse("an exchange of what was aborted");
    if (type != 1 || peer < 0 || peer >= member->ranks || peer == member->rank) return ARGUMENT;
    if (::known(stream)->context->device != member->device) refuse("an exchange on a stream of another card");
    not_recorded_by_any(stream);
    group.push_back({send, at, bytes, peer, member, (Stream *)stream});
    return 0;
}
void hang(const Asked &asked) {
    asked.stream->hung = true;
    asked.member->hanging.insert(asked.stream);
}
// Who takes what each sends. Both must have been asked for the same.
Pairs matched() {
    Pairs out;
    std::vector<bool> met(group.size());
    for (size_t i = 0; i < group.size(); i++) {
        if (!group[i].send) continue;
        size_t j = 0;
        auto meets = [&](const Asked &a, const Asked &b) {
            return !b.send && a.member->clique == b.member->clique && a.peer == b.member->rank && b.peer == a.member->rank;
        };
        while (j < group.size() && (met[j] || !meets(group[i], group[j]))) j++;
        if (j == group.size()) refuse("what is sent and never taken");
        if (group[i].bytes != group[j].bytes) refuse("more sent than is taken, or less");
        met[i] = met[j] = true;
        out.push_back({group[i], group[j]});
    }
    for (bool one : met)
        if (!one) refuse("a card that takes what nobody sends");
    return out;
}
// A card sends in its stream and takes in its stream. What it takes it has after the sender had come to that; a sender may be
// done before it was taken.
void order_all(const Pairs &pairs) {
    std::map<Stream *, order::Clock> clocks;
    for (auto &asked : group) clocks[asked.stream];
    for (auto &[stream, clock] : clocks) order::step(stream->line), clock = stream->line.seen;
    for (auto &[sent, taken] : pairs) {
        inside(sent.stream->context, sent.stream->line, sent.at, sent.bytes, false, order::Use::copy);
        inside(taken.stream->context, taken.stream->line, taken.at, taken.bytes, true, order::Use::copy);
    }
    for (auto &[sent, taken] : pairs) taken.stream->line.seen.join(clocks[sent.stream]);
}
void exchange(const Pairs &pairs) {
    for (auto &[sent, taken] : pairs) {
        memmove((void *)taken.at, (void *)sent.at, sent.bytes);
        if (like == "wrong") ((char *)taken.at)[taken.bytes - 1] ^= 1;
    }
    exchanges++;
}
}
}

extern "C" {
// For tests: what it is like from now on, or again as at first; and how many exchanges there were.
void tsnode_nccl_is(const char *like) { TURN; nccl::like = like ? like : nccl::at_first; }
unsigned long tsnode_nccl_exchanges() { TURN; return nccl::exchanges; }

int ncclGetVersion(int *version) { *version = 22105; return 0; }
const char *ncclGetErrorString(int error) {
    return error == nccl::SYSTEM ? "unhandled system error" : error == nccl::REMOTE ? "remote process exited" : "an error";
}
int ncclCommInitAll(void **out, int count, const int *devices) {
    std::unique_lock<std::recursive_mutex> turn(one_at_a_time);
    static int cliques;
    while (nccl::like == "late") turn.unlock(), usleep(10000), turn.lock();
    if (nccl::like == "absent") return nccl::SYSTEM;
    for (int i = 0; i < count; i++) {
        if (devices[i] < 0 || devices[i] >= cards()) return nccl::ARGUMENT;
        for (int j = 0; j < i; j++)
            if (devices[i] == devices[j]) return nccl::USAGE;
    }
    cliques++;
    for (int i = 0; i < count; i++) nccl::members.insert(out[i] = new nccl::Member{cliques, devices[i], i, count, 0, false, {}});
    return 0;
}
int ncclGroupStart() { TURN; nccl::depth++; return 0; }
int ncclSend(const void *at, size_t count, int type, int peer, void *communicator, void *stream) { TURN;
    return nccl::ask(true, (unsigned long long)at, count, type, peer, communicator, stream);
}
int ncclRecv(void *at, size_t count, int type, int peer, void *communicator, void *stream) { TURN;
    return nccl::ask(false, (unsigned long long)at, count, type, peer, communicator, stream);
}
int ncclGroupEnd() {
    std::unique_lock<std::recursive_mutex> turn(one_at_a_time);
    if (!nccl::depth) return nccl::USAGE;
    if (--nccl::depth) return 0;
    auto asked = nccl::group;
    struct Done { ~Done() { nccl::group.clear(); } } done;
    if (asked.empty()) return 0;
    const std::string like = nccl::like;
    if (like == "stuck") {
        while (!asked[0].member->aborted) turn.unlock(), usleep(1000), turn.lock();
        return nccl::INTERNAL;
    }
    if (like == "slow") usleep(3000);
    auto pairs = nccl::matched();
    // Behind a group that never ends nothing is done either, so it is in order.
    if (like != "broken") nccl::order_all(pairs);
    if (like == "broken" || like == "hangs" || like == "lost") {
        for (auto &one : asked)
            if (like != "broken" || one.stream != asked.back().stream) nccl::hang(one);
        if (like == "lost") asked[0].member->meanwhile = nccl::REMOTE;
        return like == "broken" ? nccl::UNHANDLED : 0;
    }
    nccl::exchange(pairs);
    return 0;
}
int ncclCommGetAsyncError(void *communicator, int *error) { TURN;
    if (nccl::known(communicator)->aborted) refuse("asking what was aborted");
    *error = nccl::known(communicator)->meanwhile;
    return 0;
}
// The member stays known, for who is stuck with it.
int ncclCommAbort(void *communicator) { TURN;
    nccl::Member *member = nccl::known(communicator);
    if (member->aborted) refuse("a communicator aborted twice");
    member->aborted = true;
    for (Stream *stream : member->hanging)
        if (streams.count(stream)) stream->hung = false;
    return 0;
}
int ncclCommDestroy(void *communicator) { TURN;
    nccl::Member *member = nccl::known(communicator);
    if (member->aborted || !member->hanging.empty()) refuse("a communicator given back that was aborted, or is to be");
    nccl::members.erase(communicator);
    delete member;
    return 0;
}
}
