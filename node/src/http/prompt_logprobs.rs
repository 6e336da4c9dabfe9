//! Log-probabilities of a prompt's tokens: `echo` with `logprobs`, and vLLM's `prompt_logprobs`.

use super::logprobs::finite;
use crate::text::{Detokeniser, TextModel};
use serde_json::{Map, Value, json};
use tsnode_protocol::{PromptLogprob, Sampled, Token, TokenLogprob};

/// What is known of one answer's prompt.
#[derive(Debug, Default)]
pub(super) struct PromptLogprobs {
    /// Of tokens from the second on.
    known: Vec<PromptLogprob>,
}

impl PromptLogprobs {
    pub fn extend(&mut self, more: Vec<PromptLogprob>) {
        self.known.extend(more);
    }

    /// Whether all are known of a prompt of so many tokens.
    pub fn is_whole(&self, prompt: usize) -> bool {
        self.known.len() + 1 >= prompt
    }

    /// The prompt's tokens as if they had been chosen, with so many alternatives; of the first nothing is known, since it
    /// follows nothing.
    pub fn as_chosen<'p>(&'p self, prompt: &'p [Token], n: u8) -> impl Iterator<Item = Option<Sampled>> + 'p {
        let chosen = move |(token, said): (&Token, &PromptLogprob)| {
            let top = said.top.iter().take(n.into()).copied().collect();
            Some(Sampled { token: *token, logprob: Some(said.logprob), top })
        };
        std::iter::once(None).chain(prompt.iter().skip(1).zip(&self.known).map(chosen))
    }

    /// In vLLM's form: null for the first token, then for each an object of its own and the likeliest tokens by their ids.
    pub fn in_vllms_form(&self, prompt: &[Token], n: u8, model: &TextModel) -> Value {
        let mut before = Detokeniser::new(model.tokenizer(), false);
        let mut list = vec![Value::Null];
        prompt.first().into_iter().for_each(|token| drop(before.push(*token)));
        for (token, said) in prompt.iter().skip(1).zip(&self.known) {
            let mut entry = Map::new();
            let mut put = |token: Token, logprob: f32, rank: u32| {
                let text = before.token_text(token).text;
                let said = json!({ "logprob": finite(logprob), "rank": rank, "decoded_token": text });
                entry.insert(token.0.to_string(), said);
            };
            put(*token, said.logprob, said.rank);
            let others = (1..).zip(said.top.iter().take(n.into())).filter(|(_, other)| other.token != *token);
            others.for_each(|(rank, TokenLogprob { token, logprob })| put(*token, *logprob, rank));
            list.push(Value::Object(entry));
            drop(before.push(*token));
        }
        Value::Array(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{http::tests::files, text::Templates};

    #[test]
    fn what_cannot_be_is_a_number_in_vllms_form_too() {
        let model = TextModel::new(&files(), &Templates::Here).unwrap();
        let never = f32::NEG_INFINITY;
        let top = vec![TokenLogprob { token: Token(61), logprob: never }];
        let known = PromptLogprobs { known: vec![PromptLogprob { logprob: never, rank: 4, top }] };
        let list = known.in_vllms_form(&[Token(70), Token(60)], 1, &model);
        assert_eq!(
            (&list[1]["60"]["logprob"], &list[1]["61"]["logprob"]),
            (&json!(-9999.0), &json!(-9999.0)),
            "{list}"
        );
    }
}
