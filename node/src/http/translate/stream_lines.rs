//! Reads a completion's stream of events back.

use axum::body::{Body, BodyDataStream};
use futures::StreamExt;
use serde_json::Value;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StreamLine {
    Data(Value),
    /// Nothing follows.
    Done,
}

/// Events as they come.
pub(super) struct StreamLines {
    body: BodyDataStream,
    /// Bytes of a line that has not ended: no more than the completion sends at once.
    rest: Vec<u8>,
}

impl StreamLines {
    pub fn of(body: Body) -> Self {
        Self { body: body.into_data_stream(), rest: Vec::new() }
    }

    /// The next event; nothing where the stream has ended.
    pub async fn next(&mut self) -> Option<StreamLine> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if let Some(event) = event(&line) {
                    return Some(event);
                }
            }
            self.rest.extend_from_slice(&self.body.next().await?.ok()?);
        }
    }
}

/// What a line says, unless it is a comment, a name or the end of an event.
fn event(line: &[u8]) -> Option<StreamLine> {
    let data = line.strip_prefix(b"data:")?.trim_ascii();
    if data == b"[DONE]" { Some(StreamLine::Done) } else { serde_json::from_slice(data).ok().map(StreamLine::Data) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use serde_json::json;
    use std::convert::Infallible;

    #[tokio::test]
    async fn events_are_read_however_they_are_cut() {
        let text = ": keep-alive\n\nid: 7\ndata: {\"a\":\"b\"}\n\ndata: {\"c\":1}\n\ndata: [DONE]\n\n";
        for size in [1, 7, text.len()] {
            let pieces: Vec<_> =
                text.as_bytes().chunks(size).map(|piece| Ok::<_, Infallible>(piece.to_vec())).collect();
            let mut lines = StreamLines::of(Body::from_stream(stream::iter(pieces)));
            let mut read = Vec::new();
            while let Some(line) = lines.next().await {
                read.push(line);
            }
            assert_eq!(
                read,
                [StreamLine::Data(json!({ "a": "b" })), StreamLine::Data(json!({ "c": 1 })), StreamLine::Done]
            );
        }
    }
}
