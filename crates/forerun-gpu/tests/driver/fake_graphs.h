// Streams, events, captures and graphs of the fake driver. Included by fake_driver.cpp alone.
//
// Work on a stream is done when something waits for it, in order. An event has passed when the work
// before it is done. What is put on a stream that is being captured belongs to the graph instead,
// and is done again at every launch of the graph. As in the real driver, a capture refuses:
//
//   a wait for the stream, copies in a batch             error 900, and the capture is invalid
//   work on the default stream meanwhile                 error 906, and the capture is invalid
//   a question about an event that was captured          error 907
#pragma once
#include <memory>

namespace {

struct UserObject {
    void* value;
    void (*destroy)(void*);
    unsigned references;
};

struct Graph {
    std::vector<std::function<void()>> work;
    std::vector<UserObject*> objects;
    bool is_invalid = false;

    ~Graph() {
        for (UserObject* object : objects) {
            if (--object->references != 0) continue;
            object->destroy(object->value);
            delete object;
        }
    }
};

struct Recorded {
    Handle stream = 0;
    size_t after = 0;  // the stream's work before it
    bool in_graph = false;
};

std::map<Handle, std::shared_ptr<Graph>> captures;  // by stream
std::map<Handle, std::shared_ptr<Graph>> graphs, instances;
std::map<Handle, size_t> put, done;  // numbers of work on each stream
std::map<Handle, Recorded> events;
Handle last_stream = 0x2000, last_event = 0x4000, last_graph = 0x30000;

// The caller holds the lock.
bool is_capturing() { return !captures.empty(); }

Graph* capture_of(Handle stream) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = captures.find(stream);
    return found == captures.end() ? nullptr : found->second.get();
}
// Breaks a capture by a call that it refuses.
Result refused(Graph& graph, const char* what) {
    const std::lock_guard<std::mutex> lock(mutex);
    graph.is_invalid = true;
    faults += std::string(what) + " during a capture; ";
    return capture_unsupported;
}
void enqueue(Handle stream, std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (stream == 0) {
        for (auto& [other, graph] : captures) {
            graph->is_invalid = true;
            faults += "work on the default stream during a capture; ";
        }
    }
    const auto capture = captures.find(stream);
    if (capture != captures.end()) {
        capture->second->work.push_back(std::move(work));
        return;
    }
    ++put[stream];
    queues[stream].push_back(std::move(work));
}
void finish(Handle stream) {
    std::vector<std::function<void()>> work;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        work.swap(queues[stream]);
    }
    for (auto& each : work) each();
    const std::lock_guard<std::mutex> lock(mutex);
    done[stream] += work.size();
}
void finish_all() {
    std::vector<Handle> streams;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        for (auto& [stream, work] : queues) streams.push_back(stream);
    }
    for (const Handle stream : streams) finish(stream);
}
Recorded recorded_at(Handle event) {
    const std::lock_guard<std::mutex> lock(mutex);
    return events[event];
}

}  // namespace

API cuStreamCreateWithPriority(Handle* stream, unsigned, int) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    *stream = ++last_stream;
    return success;
}
API cuStreamDestroy_v2(Handle) {
    NEEDS_CONTEXT;
    return success;
}
API cuStreamSynchronize(Handle stream) {
    NEEDS_CONTEXT;
    if (Graph* graph = capture_of(stream)) return refused(*graph, "a wait for the stream");
    called("wait", stream);
    finish(stream);
    return success;
}
// Many copies in one call. The driver has it since CUDA 12.8.
API cuMemcpyBatchAsync_v2(uint64_t* to, uint64_t* from, size_t* bytes, size_t count, void*, size_t*,
                          size_t, Handle stream) {
    NEEDS_CONTEXT;
    if (stream == 0 || count == 0) return invalid_value;
    if (Graph* graph = capture_of(stream)) return refused(*graph, "copies in a batch");
    called(("batch" + std::to_string(count)).c_str(), stream);
    for (size_t i = 0; i < count; ++i) {
        const uint64_t destination = to[i], source = from[i];
        const size_t length = bytes[i];
        if (length == 0) return invalid_value;
        enqueue(stream, [=] {
            std::memcpy(reinterpret_cast<void*>(destination), reinterpret_cast<void*>(source),
                        length);
        });
    }
    return success;
}
API cuStreamWaitEvent(Handle, Handle, unsigned) {
    NEEDS_CONTEXT;
    return success;
}
API cuStreamBeginCapture_v2(Handle stream, int) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    captures[stream] = std::make_shared<Graph>();
    return success;
}
API cuStreamEndCapture(Handle stream, Handle* graph) {
    NEEDS_CONTEXT;
    std::shared_ptr<Graph> captured;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        captured = captures[stream];
        captures.erase(stream);
    }
    *graph = 0;
    if (captured == nullptr) return invalid_value;
    if (captured->is_invalid) return capture_invalidated;
    const std::lock_guard<std::mutex> lock(mutex);
    *graph = ++last_graph;
    graphs[*graph] = std::move(captured);
    return success;
}
// A graph that is being captured has the handle of its stream.
API cuStreamGetCaptureInfo_v2(Handle stream, int* status, uint64_t* id, Handle* graph, const void**,
                              size_t*) {
    NEEDS_CONTEXT;
    const Graph* capture = capture_of(stream);
    *status = capture == nullptr ? 0 : capture->is_invalid ? 2 : 1;
    *id = stream, *graph = capture == nullptr ? 0 : stream;
    return success;
}
API cuUserObjectCreate(UserObject** object, void* value, void (*destroy)(void*), unsigned count,
                       unsigned flags) {
    NEEDS_CONTEXT;
    if (count == 0 || flags != 1) return invalid_value;
    *object = new UserObject{value, destroy, count};
    return success;
}
API cuUserObjectRelease(UserObject* object, unsigned count) {
    NEEDS_CONTEXT;
    object->references -= count;
    if (object->references == 0) {
        object->destroy(object->value);
        delete object;
    }
    return success;
}
API cuGraphRetainUserObject(Handle graph, UserObject* object, unsigned count, unsigned flags) {
    NEEDS_CONTEXT;
    Graph* capture = capture_of(graph);
    if (capture == nullptr || count != 1 || flags != 1) return invalid_value;
    capture->objects.push_back(object);
    return success;
}
API cuGraphInstantiateWithFlags(Handle* exec, Handle graph, uint64_t) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = graphs.find(graph);
    if (found == graphs.end()) return invalid_value;
    *exec = ++last_graph;
    instances[*exec] = found->second;
    return success;
}
API cuGraphLaunch(Handle exec, Handle stream) {
    NEEDS_CONTEXT;
    std::shared_ptr<Graph> graph;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = instances.find(exec);
        if (found == instances.end()) return invalid_value;
        graph = found->second;
    }
    called("graph", stream);
    // What is in flight keeps the graph, too.
    enqueue(stream, [graph] {
        for (auto& each : graph->work) each();
    });
    return success;
}
int destroyed(std::map<Handle, std::shared_ptr<Graph>>& from, Handle handle) {
    std::shared_ptr<Graph> graph;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = from.find(handle);
        if (found == from.end()) return invalid_value;
        graph.swap(found->second);
        from.erase(found);
    }
    // The callbacks of user objects run here, without the lock.
    return success;
}
API cuGraphExecDestroy(Handle exec) {
    NEEDS_CONTEXT;
    return destroyed(instances, exec);
}
API cuGraphDestroy(Handle graph) {
    NEEDS_CONTEXT;
    return destroyed(graphs, graph);
}
API cuEventCreate(Handle* event, unsigned) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    *event = ++last_event;
    return success;
}
API cuEventRecord(Handle event, Handle stream) {
    NEEDS_CONTEXT;
    called("record", stream);
    const std::lock_guard<std::mutex> lock(mutex);
    events[event] = {stream, put[stream], captures.count(stream) != 0};
    return success;
}
// Waits for more than the driver does: for all work on the stream.
API cuEventSynchronize(Handle event) {
    NEEDS_CONTEXT;
    const Recorded at = recorded_at(event);
    if (at.in_graph) return captured_event;
    called("wait", at.stream);
    finish(at.stream);
    return success;
}
API cuEventQuery(Handle event) {
    NEEDS_CONTEXT;
    UNSAFE_DURING_CAPTURE;
    const Recorded at = recorded_at(event);
    if (at.in_graph) return captured_event;
    const std::lock_guard<std::mutex> lock(mutex);
    return done[at.stream] >= at.after ? success : not_ready;
}
API cuEventElapsedTime(float* ms, Handle, Handle) {
    *ms = 1;
    return success;
}
API cuEventDestroy_v2(Handle event) {
    NEEDS_CONTEXT;
    const std::lock_guard<std::mutex> lock(mutex);
    events.erase(event);
    return success;
}
