//! See the library's `burst` module.

fn main() -> std::process::ExitCode {
    examples::command::main_of("burst")
}
