//! Responses that later ones may go on from: so many, of so many bytes, the oldest of which go first.

use super::super::ApiError;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Responses kept.
const KEPT: usize = 256;
/// What they may take together (bytes), each with the conversation before it.
const BYTES: usize = 16 << 20;

/// Responses of this gateway's clients. Held for list operations, and for writing and reading one as text.
#[derive(Debug, Default)]
pub(in crate::http) struct ResponseStore(Mutex<ResponseShelf>);

#[derive(Debug, Default)]
struct ResponseShelf {
    bytes: usize,
    /// Oldest first.
    kept: VecDeque<StoredResponse>,
}

#[derive(Debug)]
struct StoredResponse {
    id: String,
    /// As text: a JSON value takes many times its length.
    response: String,
    /// The messages of a chat, with what the response added to them.
    conversation: String,
}

impl StoredResponse {
    fn bytes(&self) -> usize {
        self.id.len() + self.response.len() + self.conversation.len()
    }
}

impl ResponseStore {
    /// Keeps a response and the conversation that it ends; nothing where that alone is too much.
    pub fn keep(&self, response: &Value, conversation: &[Value]) {
        let id = response["id"].as_str().unwrap_or_default().to_owned();
        let conversation = Value::from(conversation).to_string();
        let entry = StoredResponse { id, response: response.to_string(), conversation };
        if entry.bytes() > BYTES {
            return;
        }
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked for again by its key, it has the same name.
        shelf.remove(&entry.id);
        shelf.bytes += entry.bytes();
        shelf.kept.push_back(entry);
        while shelf.kept.len() > KEPT || shelf.bytes > BYTES {
            let Some(oldest) = shelf.kept.pop_front() else { return };
            shelf.bytes -= oldest.bytes();
        }
    }

    pub fn response(&self, id: &str) -> Option<Value> {
        self.of(id, |entry| serde_json::from_str(&entry.response).ok())
    }

    /// The messages of the chat that ends with this response.
    pub fn conversation(&self, id: &str) -> Option<Vec<Value>> {
        self.of(id, |entry| serde_json::from_str(&entry.conversation).ok())
    }

    /// Whether it was there.
    pub fn forget(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    fn of<T>(&self, id: &str, read: impl FnOnce(&StoredResponse) -> Option<T>) -> Option<T> {
        let shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.kept.iter().rev().find(|entry| entry.id == id).and_then(read)
    }
}

impl ResponseShelf {
    fn remove(&mut self, id: &str) -> bool {
        let Some(entry) = self.kept.iter().position(|entry| entry.id == id).and_then(|at| self.kept.remove(at)) else {
            return false;
        };
        self.bytes -= entry.bytes();
        true
    }
}

/// Why a response is not there.
pub(super) fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(80).collect();
    ApiError::NotFound(format!(
        "/v1/responses/{id}: the peer that answered keeps its last {KEPT} responses, of {} MiB together, while it runs",
        BYTES >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keep(store: &ResponseStore, id: usize, text: &str) {
        store.keep(&json!({ "id": format!("resp_{id}") }), &[json!({ "role": "user", "content": text })]);
    }

    #[test]
    fn the_oldest_go_first_by_number_and_by_bytes() {
        let store = ResponseStore::default();
        (0..300).for_each(|id| keep(&store, id, "x"));
        assert!(store.response("resp_43").is_none() && store.response("resp_44").is_some());
        keep(&store, 300, &"x".repeat(BYTES / 2));
        keep(&store, 301, &"x".repeat(BYTES / 2));
        assert!(store.response("resp_299").is_none() && store.response("resp_300").is_none());
        assert_eq!(store.conversation("resp_301").unwrap()[0]["role"], "user");
        keep(&store, 302, &"x".repeat(BYTES));
        assert!(store.response("resp_302").is_none() && store.response("resp_301").is_some());
        assert!(store.forget("resp_301") && !store.forget("resp_301"));
        assert_eq!(store.0.lock().unwrap().bytes, 0);
    }

    #[test]
    fn one_that_is_answered_again_is_there_once() {
        let store = ResponseStore::default();
        keep(&store, 1, "x");
        keep(&store, 1, "y");
        assert_eq!(store.conversation("resp_1").unwrap()[0]["content"], "y");
        assert!(store.forget("resp_1") && store.response("resp_1").is_none());
    }
}
