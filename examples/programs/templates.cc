// Much of the library at once, and many instances of its templates: a compiler's heap.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Shape {
    std::map<std::array<int, N + 1>, std::vector<std::string>> names;
    std::variant<int, std::string, std::tuple<long, char, std::string>> value;
    std::function<int(const Shape&)> call = [](const Shape& s) { return int(s.names.size()) + N; };
    int run() {
        names[{}].push_back(std::to_string(N));
        std::sort(names[{}].begin(), names[{}].end());
        return call(*this) + std::visit([](auto&& x) { return int(sizeof(x)); }, value);
    }
};
template <int... N> int all(std::integer_sequence<int, N...>) { return (Shape<N>().run() + ...); }
int main() {
    std::regex words("[a-z]+|([0-9]+)\\.([0-9]*)");
    std::cout << all(std::make_integer_sequence<int, 8>()) << std::regex_match("abc", words) << "\n";
}
