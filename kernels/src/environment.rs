//! The process's environment, for libraries that can be told in no other way.

/// Sets a variable where that can harm nobody: while this process has one thread. Whether it did; where the system does not
/// say how many threads there are, it did not.
#[must_use]
#[expect(unsafe_code, reason = "the lines below say why it is sound")]
pub fn set_while_alone(name: &str, value: &str) -> bool {
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if is_alone {
        // SAFETY: nobody reads the environment meanwhile. The calling thread is the only one, and only it could start another.
        unsafe { std::env::set_var(name, value) };
    }
    is_alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_alone_changes_nothing() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        assert!(!set_while_alone("TSNODE_TEST_ALONE", "1"));
        assert!(std::env::var_os("TSNODE_TEST_ALONE").is_none());
        drop(end);
        assert!(other.join().is_ok_and(|received| received.is_err()));
    }
}
