//! A short form of a conversation, to see whether a template keeps what is said.

use super::{ChatMessage, Conversation};

/// What is left of a long message's begin, and of its end (bytes).
const END: usize = 32;

/// The conversation with little of every message.
pub(super) fn form(conversation: &Conversation) -> Conversation {
    let messages = conversation.messages.iter().map(|message| {
        let ChatMessage { role, content, name, tool_call_id, .. } = message;
        let (role, name, tool_call_id) = (role.clone(), name.clone(), tool_call_id.clone());
        let mut tool_calls = message.tool_calls.clone();
        tool_calls.iter_mut().for_each(|call| call.arguments = "{}".to_owned());
        ChatMessage { role, content: ends(content), name, tool_call_id, tool_calls, reasoning_content: None }
    });
    let messages = messages.collect();
    let Conversation { tools, documents, kwargs, ending, .. } = conversation;
    let (tools, documents, kwargs) = (tools.clone(), documents.clone(), kwargs.clone());
    Conversation { messages, tools, documents, kwargs, ending: *ending }
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
pub(super) fn is_kept(form: &Conversation, rendered: &str) -> bool {
    let mut rest = rendered;
    form.messages.iter().filter(|message| message.role != "assistant").all(|message| {
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
        let says = |content: String| ChatMessage::new("user", content);
        let short = |content: String| form(&[says(content)].into()).messages[0].content.clone();
        assert_eq!(short("Good day".into()), "Good day");
        assert_eq!(short("a".repeat(40) + &"b".repeat(40)), "a".repeat(32) + &"b".repeat(32));
        assert_eq!(short("가".repeat(100)), "가".repeat(20), "no half letters");
    }

    #[test]
    fn what_was_told_is_looked_for_in_order() {
        let says = ChatMessage::new;
        let told = [says("system", " Be brief. "), says("assistant", "No"), says("user", "Why?")].into();
        assert!(is_kept(&told, "<s>Be brief.<u>Why?<a>"));
        assert!(!is_kept(&told, "<u>Why?<s>Be brief.<a>") && !is_kept(&told, "<s>Be brief.") && !is_kept(&told, ""));
    }
}
