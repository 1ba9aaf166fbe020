//! See the library's `is` module.

fn main() -> std::process::ExitCode {
    examples::command::main_of("is")
}
