//! The binary as it is installed. That this test needs it also has it built, once and with everything else, for the
//! stories in `tests/`, which start it as a process.

use std::process::Command;

#[test]
fn the_binary_says_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_apportion"))
        .arg("--version")
        .output()
        .expect("it runs");
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text.trim(),
        format!("apportion {}", env!("CARGO_PKG_VERSION"))
    );
}
