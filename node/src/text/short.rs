//! A short form of a conversation, to see whether a template keeps what is said.

use super::ChatMessage;

/// What is left of a long message's begin, and of its end (bytes).
const END: usize = 32;

/// The conversation with little of every message.
pub(super) fn form(messages: &[ChatMessage]) -> Vec<ChatMessage> {
    messages.iter().map(|message| ChatMessage { role: message.role.clone(), content: ends(&message.content) }).collect()
}

fn ends(text: &str) -> String {
    if text.len() <= 2 * END {
        return text.to_owned();
    }
    let (begin, _) = split(text, END);
    // As far from its end, or less far.
    let end = (text.len() - END..text.len()).find_map(|at| text.get(at..)).unwrap_or_default();
    [begin, end].concat()
}

/// The first bytes of a text, so many or as few less as letters make it, and the rest.
pub(super) fn split(text: &str, bytes: usize) -> (&str, &str) {
    (0..=bytes.min(text.len())).rev().find_map(|at| text.split_at_checked(at)).unwrap_or((text, ""))
}

/// Whether a template has kept, in order, all that the model was told.
pub(super) fn is_kept(form: &[ChatMessage], rendered: &str) -> bool {
    let mut rest = rendered;
    form.iter().filter(|message| message.role != "assistant").all(|message| {
        let said = message.content.trim();
        let found = rest.find(said).and_then(|at| rest.get(at + said.len()..));
        rest = found.unwrap_or_default();
        found.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_left_of_what_is_long() {
        let says = |content: String| ChatMessage { role: "user".into(), content };
        let short = |content: String| form(&[says(content)])[0].content.clone();
        assert_eq!(short("Good day".into()), "Good day");
        assert_eq!(short("a".repeat(40) + &"b".repeat(40)), "a".repeat(32) + &"b".repeat(32));
        assert_eq!(short("가".repeat(100)), "가".repeat(20), "no half letters");
    }

    #[test]
    fn what_was_told_is_looked_for_in_order() {
        let says = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
        let told = [says("system", " Be brief. "), says("assistant", "No"), says("user", "Why?")];
        assert!(is_kept(&told, "<s>Be brief.<u>Why?<a>"));
        assert!(!is_kept(&told, "<u>Why?<s>Be brief.<a>") && !is_kept(&told, "<s>Be brief.") && !is_kept(&told, ""));
    }
}
