//! Where chat templates are rendered.

use super::{ChatTemplate, Conversation, TemplateText, TextError, clock, sandbox::TemplateSandbox};
use std::path::PathBuf;

/// Where to render them.
#[derive(Clone, Debug)]
pub enum Templates {
    /// Here: those that one wrote oneself.
    Here,
    /// In processes of this program, which is `tsnode`, with an end to what they take: those of strangers.
    Sandboxed(PathBuf),
}

impl Templates {
    /// In processes of the program that runs.
    ///
    /// # Errors
    /// When the system does not say which that is.
    pub fn apart() -> std::io::Result<Self> {
        Ok(Self::Sandboxed(crate::platform::own_program()?))
    }

    pub(super) fn renderer(&self, template: TemplateText) -> Result<Renderer, TextError> {
        Ok(match self {
            Self::Here => Renderer::Here(ChatTemplate::new(template, clock::here).map_err(TextError::template)?),
            Self::Sandboxed(program) => Renderer::Sandboxed(Box::new(TemplateSandbox::new(program, template))),
        })
    }
}

/// A template, where it is rendered.
pub(super) enum Renderer {
    Here(ChatTemplate),
    Sandboxed(Box<TemplateSandbox>),
}

impl Renderer {
    pub async fn check(&self) -> Result<(), TextError> {
        match self {
            Self::Here(_) => Ok(()),
            Self::Sandboxed(apart) => apart.check().await,
        }
    }

    pub async fn render(&self, conversation: &Conversation) -> Result<String, TextError> {
        match self {
            Self::Here(template) => template.render(conversation).map_err(TextError::Input),
            Self::Sandboxed(apart) => apart.render(conversation).await,
        }
    }
}
