// A minimal test harness: named tests, a filter on the command line, and a count, so that no test
// can go missing.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace forerun::test {

struct Test {
    std::string name;
    void (*body)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}
inline int failures = 0;

__attribute__((format(printf, 3, 4))) inline void fail(const char* file, int line,
                                                       const char* format, ...) {
    std::printf("  FAILED %s:%d: ", file, line);
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
    if (++failures >= 20) {
        std::printf("too many failures\n");
        std::exit(1);
    }
}

// Whether every case runs. Without FORERUN_ALL_CASES, a quarter of them does.
inline bool all_cases() { return std::getenv("FORERUN_ALL_CASES") != nullptr; }

struct Register {
    Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// Runs the tests whose name contains the first argument, or all tests.
inline int run_all(int count, char** arguments) {
    const char* filter = count > 1 ? arguments[1] : "";
    int run = 0;
    for (const Test& test : tests()) {
        if (test.name.find(filter) == std::string::npos) continue;
        ++run;
        const int before = failures;
        test.body();
        std::printf("%s %s\n", failures == before ? "ok    " : "FAILED", test.name.c_str());
        std::fflush(stdout);
    }
    std::printf("%d tests, %d failures\n", run, failures);
    return failures == 0 && run > 0 ? 0 : 1;
}

}  // namespace forerun::test

#define FORERUN_JOIN_(a, b) a##b
#define FORERUN_JOIN(a, b) FORERUN_JOIN_(a, b)
#define TEST(name)                                                          \
    static void FORERUN_JOIN(test_, __LINE__)();                            \
    static const forerun::test::Register FORERUN_JOIN(register_, __LINE__)( \
        name, FORERUN_JOIN(test_, __LINE__));                               \
    static void FORERUN_JOIN(test_, __LINE__)()
#define CHECK(condition, ...)                                                     \
    do {                                                                          \
        if (!(condition)) forerun::test::fail(__FILE__, __LINE__, __VA_ARGS__);   \
    } while (0)
