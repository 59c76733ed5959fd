"""The one table of texts: what a report says on its pages, in English, German and French.

The English text is the key: it is what the report's parts say, with {fields} for what differs from
run to run. A field holds a number, a name, or another text of this table. A text that is not here
stays English, and the report says so.
"""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """One text in every language.

    Attributes:
        en: English, as the report's parts say it.
        de: German.
        fr: French.
    """

    en: str
    de: str
    fr: str


# What people decide by, and the verdict.
VERDICTS = (
    Text("PASS", "BESTANDEN", "RÉUSSI"),
    Text("FAIL", "DURCHGEFALLEN", "ÉCHEC"),
    Text("NOT VERIFIED", "NICHT GEPRÜFT", "NON VÉRIFIÉ"),
    Text("NOT AUDITED", "NICHT AUDITIERT", "NON AUDITÉ"),
    Text("NO CLAIM", "KEINE ZUSAGE", "AUCUNE PROMESSE"),
    Text("NOT APPLICABLE", "NICHT ANWENDBAR", "SANS OBJET"),
    Text(
        "{audit} passed {passed} of {all} applicable checks, and every critical one. A pass says "
        "that no check contradicts the claim; it does not prove it.",
        "{audit} hat {passed} von {all} anwendbaren Prüfungen bestanden, darunter jede kritische. "
        "Das heißt, dass keine Prüfung der Zusage widerspricht; bewiesen ist sie damit nicht.",
        "{audit} a réussi {passed} contrôles applicables sur {all}, dont tous ceux qui sont "
        "critiques. Aucun contrôle ne contredit donc la promesse ; cela ne la prouve pas.",
    ),
    Text("The independent audit", "Das unabhängige Audit", "L’audit indépendant"),
    Text(
        "The trainer’s own audit",
        "Das eigene Audit des Trainierenden",
        "L’audit fait par l’entraîneur lui-même",
    ),
    Text(
        "{audit} contradicts the claim. Do not rely on this run's privacy guarantee.",
        "{audit} widerspricht der Zusage. Verlassen Sie sich nicht auf die Datenschutzgarantie "
        "dieses Laufs.",
        "{audit} contredit la promesse. Ne vous fiez pas à la garantie de confidentialité de cette "
        "exécution.",
    ),
    Text(
        "{audit} could not verify what the guarantee rests on. Treat the claim as unproven.",
        "{audit} konnte nicht prüfen, worauf die Garantie beruht. Behandeln Sie die Zusage als "
        "unbewiesen.",
        "{audit} n’a pas pu vérifier ce sur quoi repose la garantie. Considérez la promesse comme "
        "non prouvée.",
    ),
    Text(
        "No usable audit stands beside this run. Treat the claim as unproven.",
        "Neben diesem Lauf liegt kein brauchbares Audit. Behandeln Sie die Zusage als unbewiesen.",
        "Aucun audit utilisable n’accompagne cette exécution. Considérez la promesse comme non "
        "prouvée.",
    ),
    Text(
        "No differential privacy is claimed for this run. {audit} confirms only that its files are "
        "intact.",
        "Für diesen Lauf wird keine Differential Privacy zugesagt. {audit} bestätigt nur, dass "
        "seine Dateien unversehrt sind.",
        "Aucune confidentialité différentielle n’est promise pour cette exécution. {audit} "
        "confirme seulement que ses fichiers sont intacts.",
    ),
    Text(
        "Reproducible mode: not a privacy guarantee to anyone who knows the seed.",
        "Reproduzierbarer Modus: keine Datenschutzgarantie gegenüber jemandem, der den Startwert "
        "kennt.",
        "Mode reproductible : aucune garantie de confidentialité envers quiconque connaît la "
        "graine.",
    ),
    Text(
        "No guarantee towards the server: it adds the noise itself and sees the clipped updates.",
        "Keine Garantie gegenüber dem Server: er fügt das Rauschen selbst hinzu und sieht die "
        "gekappten Beiträge.",
        "Aucune garantie envers le serveur : il ajoute lui-même le bruit et voit les mises à jour "
        "écrêtées.",
    ),
    Text(
        "Nobody can derive the weights that training began with, because they were given as a "
        "module: the claim holds only if they were made without the clients' records.",
        "Niemand kann die Gewichte herleiten, mit denen das Training begann, weil sie als Modul übergeben "
        "wurden: Die Zusage gilt nur, wenn sie ohne die Datensätze der Klienten entstanden sind.",
        "Personne ne peut retrouver les poids initiaux de l’entraînement, car ils ont été fournis sous forme "
        "de module : la promesse ne vaut que s’ils ont été obtenus sans les enregistrements des clients.",
    ),
    Text(
        "The weights that training began with were made by code that is not of this package: the "
        "claim holds only if that code uses nothing that was made from the clients' records.",
        "Die Gewichte, mit denen das Training begann, stammen von Code, der nicht zu diesem Paket gehört: "
        "Die Zusage gilt nur, wenn dieser Code nichts verwendet, was aus den Datensätzen der Klienten "
        "entstanden ist.",
        "Les poids initiaux de l’entraînement proviennent d’un code étranger à ce paquet : la promesse ne "
        "vaut que si ce code n’utilise rien qui provienne des enregistrements des clients.",
    ),
    Text(
        "The weights that training began with come from a file that no publisher is named for: the "
        "claim holds only if it was made without the clients' records.",
        "Die Gewichte, mit denen das Training begann, stammen aus einer Datei, für die kein Herausgeber "
        "genannt ist: Die Zusage gilt nur, wenn sie ohne die Datensätze der Klienten entstanden ist.",
        "Les poids initiaux de l’entraînement proviennent d’un fichier pour lequel aucun éditeur n’est "
        "nommé : la promesse ne vaut que s’il a été obtenu sans les enregistrements des clients.",
    ),
    Text(
        "The weights that training began with were not committed to by the version that made this "
        "run: the claim holds only if they were made without the clients' records.",
        "Die Version, mit der dieser Lauf entstand, legte die Gewichte nicht fest, mit denen das Training "
        "begann: Die Zusage gilt nur, wenn sie ohne die Datensätze der Klienten entstanden sind.",
        "La version qui a produit cette exécution ne fixait pas les poids initiaux de l’entraînement : "
        "la promesse ne vaut que s’ils ont été obtenus sans les enregistrements des clients.",
    ),
    Text(
        "{few} of {asked} participations that were computed again count as if they had not been: on "
        "a machine other than the one that trained, a lie of more than {most} C could hide in a "
        "clipped sum.",
        "{few} von {asked} nachgerechneten Teilnahmen zählen, als wären sie es nicht: auf einer "
        "anderen Maschine als der des Trainings könnte sich eine Lüge von mehr als {most} C in einer "
        "gestutzten Summe verbergen.",
        "{few} des {asked} participations recalculées comptent comme si elles ne l’étaient pas : sur "
        "une autre machine que celle de l’entraînement, un mensonge de plus de {most} C pourrait se "
        "cacher dans une somme écrêtée.",
    ),
    Text(
        "Rests on the trainer's word: no participation was computed again from the data, so that "
        "evidence which was forged consistently would pass (dpfedadamw audit --replay N).",
        "Beruht auf dem Wort des Trainierenden: keine Teilnahme wurde aus den Daten nachgerechnet, "
        "so dass stimmig gefälschte Belege bestünden (dpfedadamw audit --replay N).",
        "Repose sur la parole de l’entraîneur : aucune participation n’a été recalculée à partir "
        "des données, de sorte que des preuves falsifiées avec cohérence passeraient (dpfedadamw "
        "audit --replay N).",
    ),
)

# What limits the verdict on somebody else's loop.
LOOPS = (
    Text(
        "Rests on the recorder's word: nothing was computed again from the data, so that evidence "
        "which was forged consistently would pass.",
        "Beruht auf dem Wort dessen, der aufzeichnete: nichts wurde aus den Daten nachgerechnet, so "
        "dass stimmig gefälschte Belege bestünden.",
        "Repose sur la parole de qui a enregistré : rien n’a été recalculé à partir des données, de "
        "sorte que des preuves falsifiées avec cohérence passeraient.",
    ),
    Text(
        "A record whose gradient is not finite is not left out: it would make the model not finite, "
        "which tells that it was there.",
        "Ein Datensatz, dessen Gradient nicht endlich ist, wird nicht ausgelassen: er machte das "
        "Modell nicht endlich, und das verrät, dass es ihn gab.",
        "Un enregistrement dont le gradient n’est pas fini n’est pas écarté : il rendrait le modèle "
        "non fini, ce qui dit qu’il était là.",
    ),
    Text(
        "A client whose update is not finite is not left out: it would make the model not finite, "
        "which tells that it was there.",
        "Ein Klient, dessen Aktualisierung nicht endlich ist, wird nicht ausgelassen: er machte das "
        "Modell nicht endlich, und das verrät, dass es ihn gab.",
        "Un client dont la mise à jour n’est pas finie n’est pas écarté : il rendrait le modèle "
        "non fini, ce qui dit qu’il était là.",
    ),
    Text(
        "How a client comes to its update was not looked at.",
        "Wie ein Klient zu seiner Aktualisierung kommt, wurde nicht betrachtet.",
        "La façon dont un client arrive à sa mise à jour n’a pas été examinée.",
    ),
    Text(
        "Noise and batches come from a generator that is not cryptographic: whoever learns its "
        "state, or enough of what it gave, can draw the noise again.",
        "Rauschen und Stapel kommen aus einem Generator, der nicht kryptographisch ist: wer seinen "
        "Zustand erfährt, oder genug von dem, was er lieferte, kann das Rauschen noch einmal ziehen.",
        "Bruit et lots viennent d’un générateur non cryptographique : qui apprend son état, ou assez "
        "de ce qu’il a fourni, peut tirer le bruit de nouveau.",
    ),
    Text(
        "How records were scaled, chosen or encoded before training, whether settings were tuned "
        "on them, and whether the weights that training began with were made from them, was not "
        "looked at.",
        "Wie Datensätze vor dem Training skaliert, gewählt oder kodiert wurden, ob Einstellungen an "
        "ihnen abgestimmt und die Anfangsgewichte aus ihnen gemacht wurden, wurde nicht betrachtet.",
        "La mise à l’échelle, le choix et le codage des enregistrements avant l’entraînement, le "
        "réglage éventuel sur eux et l’origine des poids initiaux n’ont pas été examinés.",
    ),
    Text(
        "Whoever learns the state of the generator that drew noise and batches",
        "Wer den Zustand des Generators erfährt, der Rauschen und Stapel zog",
        "Quiconque apprend l’état du générateur qui a tiré bruit et lots",
    ),
    Text(
        "All noise can be drawn again and subtracted.",
        "Alles Rauschen lässt sich noch einmal ziehen und abziehen.",
        "Tout le bruit peut être tiré de nouveau et soustrait.",
    ),
)

FRAME = (
    Text("Privacy report", "Datenschutzbericht", "Rapport de confidentialité"),
    Text("Annex to a privacy report", "Anlage zum Datenschutzbericht", "Annexe au rapport"),
    Text(
        "Internal: for the server’s operator and the auditor only",
        "Intern: nur für Betreiber des Servers und Auditor",
        "Interne : pour l’exploitant du serveur et l’auditeur seulement",
    ),
    Text(
        "Public: tells nothing of who took part",
        "Öffentlich: verrät nichts darüber, wer teilnahm",
        "Public : ne dit rien de qui a participé",
    ),
    Text("Internal report", "Interner Bericht", "Rapport interne"),
    Text("Public report", "Öffentlicher Bericht", "Rapport public"),
    Text("{report} · {state}", "{report} · {state}", "{report} · {state}"),
    Text(
        "{report} · {state} · {more}", "{report} · {state} · {more}", "{report} · {state} · {more}"
    ),
    Text(
        "no differential privacy",
        "keine Differential Privacy",
        "sans confidentialité différentielle",
    ),
    Text(
        "reproducible from a seed",
        "aus einem Startwert wiederholbar",
        "reproductible depuis une graine",
    ),
    Text("date not stated", "Datum nicht angegeben", "date non indiquée"),
    Text("Run", "Lauf", "Exécution"),
    Text("Qualification", "Einschränkung", "Réserve"),
    Text("Figure", "Abbildung", "Figure"),
    Text("Setting", "Einstellung", "Réglage"),
    Text("Value", "Wert", "Valeur"),
    Text("The audit at a glance", "Das Audit auf einen Blick", "L’audit en un coup d’œil"),
    Text("Contents", "Inhalt", "Sommaire"),
    Text("Skip to the content", "Zum Inhalt springen", "Aller au contenu"),
    Text("Numbers of figure", "Zahlen der Abbildung", "Chiffres de la figure"),
    Text("The guarantee in short", "Die Garantie in Kürze", "La garantie en bref"),
    Text(
        "more rows are in the data beside this page.",
        "weitere Zeilen stehen in den Daten neben dieser Seite.",
        "autres lignes figurent dans les données jointes.",
    ),
)

PROMISE = (
    Text(
        "No differential privacy",
        "Keine Differential Privacy",
        "Pas de confidentialité différentielle",
    ),
    Text(
        "Nothing is promised to anybody: the model was trained with no differential privacy, and "
        "nothing limits what it, or any update that led to it, tells about a record.",
        "Niemandem wird etwas zugesagt: das Modell wurde ohne Differential Privacy trainiert, und "
        "nichts begrenzt, was es oder ein Beitrag zu ihm über einen Datensatz verrät.",
        "Rien n’est promis à personne : le modèle a été entraîné sans confidentialité "
        "différentielle, et rien ne limite ce que lui, ou une mise à jour qui y a mené, révèle d’un "
        "enregistrement.",
    ),
    Text(
        "Nothing is promised: the run did not end, and its ledger makes no claim.",
        "Nichts wird zugesagt: der Lauf endete nicht, und sein Kontobuch macht keine Zusage.",
        "Rien n’est promis : l’exécution ne s’est pas achevée et son registre n’énonce aucune "
        "promesse.",
    ),
    Text(
        "Claimed, and contradicted by the audit: {promise}",
        "Behauptet, und vom Audit widerlegt: {promise}",
        "Affirmé, et contredit par l’audit : {promise}",
    ),
    Text(
        "Claimed, and not verified by the audit: {promise}",
        "Behauptet, und vom Audit nicht geprüft: {promise}",
        "Affirmé, et non vérifié par l’audit : {promise}",
    ),
    Text(
        "Claimed, and not audited: {promise}",
        "Behauptet, und nicht auditiert: {promise}",
        "Affirmé, et non audité : {promise}",
    ),
    Text(
        "{promise} It holds against nobody who knows the run’s seed.",
        "{promise} Sie gilt gegenüber niemandem, der den Startwert des Laufs kennt.",
        "{promise} Elle ne vaut contre personne qui connaisse la graine de l’exécution.",
    ),
    Text(
        "{promise} So wide a limit excludes hardly anything.",
        "{promise} Eine so weite Grenze schließt kaum etwas aus.",
        "{promise} Une limite aussi large n’exclut presque rien.",
    ),
    Text(
        "For each single record, neither the server, which sees every upload, nor anybody who sees "
        "less can shift the odds that it was used for training {limit}; nothing is promised against "
        "those who hold the run’s directory or a client’s machine.",
        "Für jeden einzelnen Datensatz kann weder der Server, der jeden Beitrag sieht, noch jemand, "
        "der weniger sieht, die Chancen, dass er zum Training diente, {limit}; gegen Inhaber des "
        "Laufverzeichnisses oder des Rechners eines Klienten wird nichts zugesagt.",
        "Pour chaque enregistrement, ni le serveur, qui voit chaque envoi, ni quiconque voit moins "
        "ne peut déplacer les chances qu’il ait servi à l’entraînement {limit} ; rien n’est promis "
        "contre ceux qui détiennent le dossier de l’exécution ou la machine d’un client.",
    ),
    Text(
        "For each single record, nobody who sees only {seen} and does not learn who took part can "
        "shift the odds that it was used for training {limit}; against the server the limit below "
        "holds, and nothing is promised against those who hold the run’s directory or a client’s "
        "machine.",
        "Für jeden einzelnen Datensatz kann niemand, der nur {seen} sieht und nicht erfährt, wer "
        "teilnahm, die Chancen, dass er zum Training diente, {limit}; gegen den Server gilt die "
        "Grenze weiter unten, und gegen Inhaber des Laufverzeichnisses oder des Rechners eines "
        "Klienten wird nichts zugesagt.",
        "Pour chaque enregistrement, personne qui ne voie que {seen} et n’apprenne pas qui a "
        "participé ne peut déplacer les chances qu’il ait servi à l’entraînement {limit} ; contre "
        "le serveur vaut la limite indiquée plus bas, et rien n’est promis contre ceux qui "
        "détiennent le dossier de l’exécution ou la machine d’un client.",
    ),
    Text(
        "For each person, with all of their records, at {clients}, neither the server, which sees "
        "every upload, nor anybody who sees less can shift the odds that their records were used "
        "for training {limit}; nothing is promised against those who hold the run’s directory or a "
        "client’s machine.",
        "Für jede Person mit allen ihren Datensätzen bei {clients} kann weder der Server, der jeden "
        "Beitrag sieht, noch jemand, der weniger sieht, die Chancen, dass ihre Datensätze zum "
        "Training dienten, {limit}; gegen Inhaber des Laufverzeichnisses oder des Rechners eines "
        "Klienten wird nichts zugesagt.",
        "Pour chaque personne, avec tous ses enregistrements, chez {clients}, ni le serveur, qui "
        "voit chaque envoi, ni quiconque voit moins ne peut déplacer les chances que ses "
        "enregistrements aient servi à l’entraînement {limit} ; rien n’est promis contre ceux qui "
        "détiennent le dossier de l’exécution ou la machine d’un client.",
    ),
    Text(
        "For each person, with all of their records, at {clients}, nobody who sees only {seen} and "
        "does not learn who took part can shift the odds that their records were used for training "
        "{limit}; against the server the limit below holds, and nothing is promised against those "
        "who hold the run’s directory or a client’s machine.",
        "Für jede Person mit allen ihren Datensätzen bei {clients} kann niemand, der nur {seen} "
        "sieht und nicht erfährt, wer teilnahm, die Chancen, dass ihre Datensätze zum Training "
        "dienten, {limit}; gegen den Server gilt die Grenze weiter unten, und gegen Inhaber des "
        "Laufverzeichnisses oder des Rechners eines Klienten wird nichts zugesagt.",
        "Pour chaque personne, avec tous ses enregistrements, chez {clients}, personne qui ne voie "
        "que {seen} et n’apprenne pas qui a participé ne peut déplacer les chances que ses "
        "enregistrements aient servi à l’entraînement {limit} ; contre le serveur vaut la limite "
        "indiquée plus bas, et rien n’est promis contre ceux qui détiennent le dossier de "
        "l’exécution ou la machine d’un client.",
    ),
    Text("one client", "einem Klienten", "un client"),
    Text("up to {count} clients", "bis zu {count} Klienten", "{count} clients au plus"),
    Text(
        "For each client with all its records, nobody who sees only {seen} and does not learn who "
        "took part can shift the odds that it was among those who trained {limit}; the server, "
        "which adds the noise, must be trusted, and nothing is promised against those who hold the "
        "run’s directory or a client’s machine.",
        "Für jeden Klienten mit allen seinen Datensätzen kann niemand, der nur {seen} sieht und "
        "nicht erfährt, wer teilnahm, die Chancen, dass er unter den Trainierenden war, {limit}; "
        "dem Server, der das Rauschen hinzufügt, muss man vertrauen, und gegen Inhaber des "
        "Laufverzeichnisses oder des Rechners eines Klienten wird nichts zugesagt.",
        "Pour chaque client avec tous ses enregistrements, personne qui ne voie que {seen} et "
        "n’apprenne pas qui a participé ne peut déplacer les chances qu’il ait été parmi ceux qui "
        "ont entraîné {limit} ; il faut faire confiance au serveur, qui ajoute le bruit, et rien "
        "n’est promis contre ceux qui détiennent le dossier de l’exécution ou la machine d’un "
        "client.",
    ),
    Text(
        "For each client with all its records, nobody who sees only {seen} and does not learn who "
        "took part can shift the odds that it was among those who trained {limit}; against the "
        "server and the other participants only the limit below holds, and nothing is promised "
        "against those who hold the run’s directory or a client’s machine.",
        "Für jeden Klienten mit allen seinen Datensätzen kann niemand, der nur {seen} sieht und "
        "nicht erfährt, wer teilnahm, die Chancen, dass er unter den Trainierenden war, {limit}; "
        "gegen den Server und die anderen Teilnehmer gilt nur die Grenze weiter unten, und gegen "
        "Inhaber des Laufverzeichnisses oder des Rechners eines Klienten wird nichts zugesagt.",
        "Pour chaque client avec tous ses enregistrements, personne qui ne voie que {seen} et "
        "n’apprenne pas qui a participé ne peut déplacer les chances qu’il ait été parmi ceux qui "
        "ont entraîné {limit} ; contre le serveur et les autres participants ne vaut que la limite "
        "indiquée plus bas, et rien n’est promis contre ceux qui détiennent le dossier de "
        "l’exécution ou la machine d’un client.",
    ),
    Text(
        "For each single record, nobody who sees the model, or all models on the way to it, can "
        "shift the odds that it was used for training {limit}; nothing is promised against those "
        "who hold the run’s directory or the machine that trained.",
        "Für jeden einzelnen Datensatz kann niemand, der das Modell oder alle Modelle auf dem Weg "
        "dorthin sieht, die Chancen, dass er zum Training diente, {limit}; gegen Inhaber des "
        "Laufverzeichnisses oder des Rechners, der trainierte, wird nichts zugesagt.",
        "Pour chaque enregistrement, personne qui voie le modèle, ou tous les modèles qui y ont "
        "mené, ne peut déplacer les chances qu’il ait servi à l’entraînement {limit} ; rien n’est "
        "promis contre ceux qui détiennent le dossier de l’exécution ou la machine d’entraînement.",
    ),
    Text(
        "The run’s hyper-parameters were chosen by looking at the private records: no ε covers that "
        "choice, and this one is that of settings which were chosen without looking.",
        "Die Hyperparameter des Laufs wurden mit Blick auf die privaten Datensätze gewählt: kein ε "
        "deckt diese Wahl, und dieses gilt für Einstellungen, die ohne diesen Blick gewählt wurden.",
        "Les hyperparamètres ont été choisis en regardant les enregistrements privés : aucun ε ne "
        "couvre ce choix, et celui-ci vaut pour des réglages choisis sans regarder.",
    ),
    Text(
        "The run is the best of a random number of trials, and the loss is that of publishing it "
        "and nothing of the others.",
        "Der Lauf ist der beste aus einer zufälligen Zahl von Versuchen, und der Verlust ist der "
        "seiner Veröffentlichung, ohne die der anderen.",
        "L’exécution est la meilleure d’un nombre aléatoire d’essais, et la perte est celle de sa "
        "publication, sans rien des autres.",
    ),
    Text(
        "The run is the best of a random number of trials, and the loss is that of publishing it "
        "and nothing of the others; towards the server, which saw them all, it is larger.",
        "Der Lauf ist der beste aus einer zufälligen Zahl von Versuchen, und der Verlust ist der "
        "seiner Veröffentlichung, ohne die der anderen; gegenüber dem Server, der alle sah, ist er "
        "größer.",
        "L’exécution est la meilleure d’un nombre aléatoire d’essais, et la perte est celle de sa "
        "publication, sans rien des autres ; envers le serveur, qui les a tous vus, elle est plus "
        "grande.",
    ),
    Text("models", "Modelle", "des modèles"),
    Text("the published model", "das veröffentlichte Modell", "le modèle publié"),
    Text(
        "by more than a factor of {factor}",
        "um mehr als das {factor}-fache verschieben",
        "de plus d’un facteur {factor}",
    ),
    Text(
        "by more than a factor of {factor}, except with a chance of {chance}",
        "um mehr als das {factor}-fache verschieben, außer mit einer Wahrscheinlichkeit von "
        "{chance}",
        "de plus d’un facteur {factor}, sauf avec une probabilité de {chance}",
    ),
    Text("1 in {number}", "1 zu {number}", "1 sur {number}"),
    Text("more likely than not", "mehr als einhalb", "plus d’une chance sur deux"),
    Text("over a billion", "mehr als eine Milliarde", "plus d’un milliard"),
    Text("{number} million", "{number} Millionen", "{number} millions"),
    Text(
        "ε towards everybody that it protects from",
        "ε gegenüber allen, vor denen es schützt",
        "ε envers tous ceux dont elle protège",
    ),
    Text("ε towards a third party", "ε gegenüber Dritten", "ε envers un tiers"),
    Text("ε towards the server", "ε gegenüber dem Server", "ε envers le serveur"),
    Text(
        "ε claimed, towards everybody that it protects from",
        "ε behauptet, gegenüber allen, vor denen es schütze",
        "ε affirmé, envers tous ceux dont elle protégerait",
    ),
    Text(
        "ε claimed, towards a third party",
        "ε behauptet, gegenüber Dritten",
        "ε affirmé, envers un tiers",
    ),
    Text(
        "ε claimed, towards the server",
        "ε behauptet, gegenüber dem Server",
        "ε affirmé, envers le serveur",
    ),
    Text("unit of protection", "was geschützt wird", "unité protégée"),
    Text("record", "Datensatz", "enregistrement"),
    Text("person", "Person", "personne"),
    Text("client", "Klient", "client"),
)

MEANING = (
    Text("What the numbers mean", "Was die Zahlen bedeuten", "Ce que signifient les chiffres"),
    Text(
        "What follows is what the claim would mean. The audit contradicts it.",
        "Was folgt, würde die Zusage bedeuten. Das Audit widerspricht ihr.",
        "Ce qui suit est ce que la promesse signifierait. L’audit la contredit.",
    ),
    Text(
        "What follows is what the claim would mean. It is not verified.",
        "Was folgt, würde die Zusage bedeuten. Sie ist nicht geprüft.",
        "Ce qui suit est ce que la promesse signifierait. Elle n’est pas vérifiée.",
    ),
    Text(
        "What follows is what the claim would mean. Nobody audited it.",
        "Was folgt, würde die Zusage bedeuten. Niemand hat sie auditiert.",
        "Ce qui suit est ce que la promesse signifierait. Personne ne l’a auditée.",
    ),
    Text(
        "What an attacker’s guess can become",
        "Was aus der Vermutung eines Angreifers werden kann",
        "Ce que peut devenir l’hypothèse d’un attaquant",
    ),
    Text(
        "How sure somebody is of one {unit}: {guess}",
        "Wie sicher sich jemand ist ({unit}): {guess}",
        "À quel point quelqu’un est sûr ({unit}) : {guess}",
    ),
    Text(
        "that it was used for training",
        "dass er zum Training diente",
        "qu’il a servi à l’entraînement",
    ),
    Text(
        "that it was among those who trained",
        "dass er unter den Trainierenden war",
        "qu’il était parmi ceux qui ont entraîné",
    ),
    Text("a hunch", "eine Ahnung", "une intuition"),
    Text("a suspicion", "ein Verdacht", "un soupçon"),
    Text("an even guess", "halb und halb", "une chance sur deux"),
    Text("beforehand", "vorher", "avant"),
    Text(
        "afterwards, at most: the odds times {factor}",
        "nachher höchstens: die Chancen mal {factor}",
        "après, au plus : les chances fois {factor}",
    ),
    Text(
        "δ is the chance that this fails: ",
        "δ ist die Wahrscheinlichkeit, dass das nicht gilt: ",
        "δ est la probabilité que cela ne vaille pas : ",
    ),
    Text("{chance} for one.", "{chance} für einen.", "{chance} pour un seul."),
    Text(
        "{chance} for one; {any} for any of all {count} records.",
        "{chance} für einen; {any} für irgendeinen von allen {count} Datensätzen.",
        "{chance} pour un seul ; {any} pour l’un quelconque des {count} enregistrements.",
    ),
    Text(
        "{chance} for one; {any} for any of all {count} records, which is much.",
        "{chance} für einen; {any} für irgendeinen von allen {count} Datensätzen, und das ist viel.",
        "{chance} pour un seul ; {any} pour l’un quelconque des {count} enregistrements, ce qui "
        "est beaucoup.",
    ),
    Text(
        "The person with the most records has {count} of them, and for all of these together ε is "
        "{epsilon}.",
        "Die Person mit den meisten Datensätzen hat {count} davon, und für alle zusammen ist ε "
        "{epsilon}.",
        "La personne qui a le plus d’enregistrements en a {count}, et pour tous ensemble ε est "
        "{epsilon}.",
    ),
    Text(
        "The person with the most records has {count} of them, for which no ε is known.",
        "Die Person mit den meisten Datensätzen hat {count} davon, für die kein ε bekannt ist.",
        "La personne qui a le plus d’enregistrements en a {count}, pour lesquels aucun ε n’est "
        "connu.",
    ),
    Text(
        "{chance} for one; {any} for any of all {count} clients.",
        "{chance} für einen; {any} für irgendeinen von allen {count} Klienten.",
        "{chance} pour un seul ; {any} pour l’un quelconque des {count} clients.",
    ),
    Text(
        "{chance} for one; {any} for any of all {count} clients, which is much.",
        "{chance} für einen; {any} für irgendeinen von allen {count} Klienten, und das ist viel.",
        "{chance} pour un seul ; {any} pour l’un quelconque des {count} clients, ce qui est "
        "beaucoup.",
    ),
    Text("strong", "stark", "fort"),
    Text("reasonable", "angemessen", "raisonnable"),
    Text("weak to none", "schwach bis keiner", "faible ou nul"),
    Text("this run, {epsilon}", "dieser Lauf, {epsilon}", "cette exécution, {epsilon}"),
    Text(
        "Apple’s telemetry, a user’s day",
        "Apples Telemetrie, Tag eines Nutzers",
        "Télémétrie d’Apple, un jour d’un usager",
    ),
    Text(
        "Gboard’s Spanish next words, a device",
        "Gboards spanische Wortvorschläge, ein Gerät",
        "Mots espagnols de Gboard, un appareil",
    ),
    Text(
        "ε = {epsilon} lies in the band that is called strong (up to 1).",
        "ε = {epsilon} liegt in dem Bereich, der stark heißt (bis 1).",
        "ε = {epsilon} se situe dans la zone dite forte (jusqu’à 1).",
    ),
    Text(
        "ε = {epsilon} lies in the band that is called reasonable (above 1, up to 10).",
        "ε = {epsilon} liegt in dem Bereich, der angemessen heißt (über 1 bis 10).",
        "ε = {epsilon} se situe dans la zone dite raisonnable (de 1 à 10).",
    ),
    Text(
        "ε = {epsilon} is weak: it lies in the band that is called weak to none (above 10).",
        "ε = {epsilon} ist schwach: es liegt in dem Bereich, der schwach bis keiner heißt (über "
        "10).",
        "ε = {epsilon} est faible : il se situe dans la zone dite faible ou nulle (au-delà de 10).",
    ),
    Text(
        "{place} Read as a limit it is weak: an even guess may become one of {guess}. That "
        "attackers reach less in practice is likely, and nobody has proved it for this run.",
        "{place} Als Grenze gelesen ist es schwach: aus halb und halb können {guess} werden. Dass "
        "Angreifer in der Praxis weniger erreichen, ist wahrscheinlich, und niemand hat es für "
        "diesen Lauf bewiesen.",
        "{place} Lu comme une limite, c’est faible : une chance sur deux peut devenir {guess}. Que "
        "des attaquants obtiennent moins en pratique est probable, et personne ne l’a prouvé pour "
        "cette exécution.",
    ),
    Text(
        "Bands: Ponomareva et al. 2023, How to DP-fy ML. Apple: list of uses at desfontain.es; "
        "Gboard: Google Research, Advances in private training for production on-device language "
        "models. They protect {theirs}, so equal numbers do not promise the same. In NIST SP "
        "800-226, ε is the top of a pyramid: worth only as much as the security and the collection "
        "of data that carry it.",
        "Bereiche: Ponomareva et al. 2023, How to DP-fy ML. Apple: Liste der Anwendungen auf "
        "desfontain.es; Gboard: Google Research, Advances in private training for production "
        "on-device language models. Sie schützen {theirs}, so dass gleiche Zahlen nicht dasselbe "
        "zusagen. In NIST SP 800-226 ist ε die Spitze einer Pyramide: nur so viel wert wie die "
        "Sicherheit und die Erhebung der Daten, die es tragen.",
        "Zones : Ponomareva et al. 2023, How to DP-fy ML. Apple : liste d’usages sur "
        "desfontain.es ; Gboard : Google Research, Advances in private training for production "
        "on-device language models. Ils protègent {theirs}, si bien que des nombres égaux ne "
        "promettent pas la même chose. Dans NIST SP 800-226, ε est le sommet d’une pyramide : il "
        "ne vaut que ce que valent la sécurité et la collecte des données qui le portent.",
    ),
    Text(
        "all that a user’s day or a device contributes, this run one record",
        "alles, was ein Tag eines Nutzers oder ein Gerät beiträgt, dieser Lauf einen Datensatz",
        "tout ce qu’une journée d’utilisateur ou un appareil apporte, cette exécution un "
        "enregistrement",
    ),
    Text(
        "a user’s day or a device, here it is a client with all its records",
        "den Tag eines Nutzers oder ein Gerät, hier ist es ein Klient mit allen seinen Datensätzen",
        "une journée d’utilisateur ou un appareil, ici c’est un client avec tous ses "
        "enregistrements",
    ),
)

READERS = (
    Text("Protected from whom", "Geschützt vor wem", "Protégé contre qui"),
    Text("Against whom a limit holds", "Gegen wen eine Grenze gilt", "Contre qui vaut une limite"),
    Text("Against", "Gegen", "Contre"),
    Text("Protected?", "Geschützt?", "Protégé ?"),
    Text("Why, or why not", "Warum, oder warum nicht", "Pourquoi, ou pourquoi pas"),
    Text("Ends if", "Endet, wenn", "Prend fin si"),
    Text("Yes", "Ja", "Oui"),
    Text("No", "Nein", "Non"),
    Text("Weakly", "Schwach", "Faiblement"),
    Text("Hardly", "Kaum", "À peine"),
    Text("Claimed", "Behauptet", "Affirmé"),
    Text("A limit", "Eine Grenze", "Une limite"),
    Text(", ε = {epsilon}", ", ε = {epsilon}", ", ε = {epsilon}"),
    Text(", see internal report", ", siehe internen Bericht", ", voir le rapport interne"),
    Text(
        "The server, and whoever breaks into it or reads the uploads",
        "Den Server, und wer in ihn eindringt oder die Beiträge mitliest",
        "Le serveur, et quiconque y pénètre ou lit les envois",
    ),
    Text(
        "The server, and whoever breaks into it during training",
        "Den Server, und wer während des Trainings in ihn eindringt",
        "Le serveur, et quiconque y pénètre pendant l’entraînement",
    ),
    Text("The other participants", "Die anderen Teilnehmer", "Les autres participants"),
    Text(
        "Third parties: whoever gets or queries the published model",
        "Dritte: wer das veröffentlichte Modell bekommt oder befragt",
        "Des tiers : quiconque reçoit ou interroge le modèle publié",
    ),
    Text(
        "Whoever holds the run’s directory, a backup of it, or a client’s machine",
        "Wer das Laufverzeichnis, eine Sicherung davon oder den Rechner eines Klienten hat",
        "Quiconque détient le dossier de l’exécution, une copie, ou la machine d’un client",
    ),
    Text(
        "Whoever has the key of the noise",
        "Wer den Schlüssel des Rauschens hat",
        "Quiconque a la clé du bruit",
    ),
    Text("Whoever has the seed", "Wer den Startwert hat", "Quiconque a la graine"),
    Text(
        "Each client clips and adds noise before anything leaves it.",
        "Jeder Klient kappt und verrauscht, bevor etwas ihn verlässt.",
        "Chaque client écrête et ajoute du bruit avant que rien ne le quitte.",
    ),
    Text(
        "Each client adds its share of the noise before it uploads. That it took part is not "
        "hidden.",
        "Jeder Klient fügt seinen Anteil des Rauschens hinzu, bevor er sendet. Dass er teilnahm, "
        "bleibt nicht verborgen.",
        "Chaque client ajoute sa part du bruit avant d’envoyer. Qu’il ait participé n’est pas "
        "caché.",
    ),
    Text(
        "a client’s own machine or code is under their control",
        "der Rechner oder das Programm eines Klienten in ihrer Hand ist",
        "la machine ou le code d’un client est sous leur contrôle",
    ),
    Text(
        "They see no more than the server.",
        "Sie sehen nicht mehr als der Server.",
        "Ils ne voient pas plus que le serveur.",
    ),
    Text(
        "They see no more than the server; their own shares of the noise they know.",
        "Sie sehen nicht mehr als der Server; ihre eigenen Anteile des Rauschens kennen sie.",
        "Ils ne voient pas plus que le serveur ; ils connaissent leurs propres parts du bruit.",
    ),
    Text(
        "Of others they see only the noised models.",
        "Von anderen sehen sie nur die verrauschten Modelle.",
        "Des autres, ils ne voient que les modèles bruités.",
    ),
    Text(
        "they work with the server, or hold records of the same person",
        "sie mit dem Server zusammenarbeiten oder Datensätze derselben Person haben",
        "ils travaillent avec le serveur, ou détiennent des enregistrements de la même personne",
    ),
    Text(
        "they work with the server",
        "sie mit dem Server zusammenarbeiten",
        "ils travaillent avec le serveur",
    ),
    Text(
        "they learn who took part in a round, or work with the server",
        "sie erfahren, wer an einer Runde teilnahm, oder mit dem Server zusammenarbeiten",
        "ils apprennent qui a participé à un tour, ou travaillent avec le serveur",
    ),
    Text(
        "They see no more than models, metrics and public files.",
        "Sie sehen nicht mehr als Modelle, Messwerte und öffentliche Dateien.",
        "Ils ne voient que les modèles, les mesures et les fichiers publics.",
    ),
    Text(
        "they learn who took part when, or see uploads, ledger or the internal report: then the "
        "server’s line holds",
        "sie erfahren, wer wann teilnahm, oder Beiträge, Kontobuch oder den internen Bericht sehen: "
        "dann gilt die Zeile des Servers",
        "ils apprennent qui a participé et quand, ou voient les envois, le registre ou le rapport "
        "interne : alors vaut la ligne du serveur",
    ),
    Text(
        "they learn who took part in a round, or see uploads, ledger or the internal report",
        "sie erfahren, wer an einer Runde teilnahm, oder Beiträge, Kontobuch oder den internen "
        "Bericht sehen",
        "ils apprennent qui a participé à un tour, ou voient les envois, le registre ou le rapport "
        "interne",
    ),
    Text(
        "evidence/ holds clean values of {unit}, and clients hold the records. Once evidence/ is "
        "erased (dpfedadamw erase), the directory tells no more than the server learns.",
        "evidence/ enthält unverrauschte Werte zu {unit}, und die Klienten haben die Datensätze. "
        "Ist evidence/ gelöscht (dpfedadamw erase), verrät das Verzeichnis nicht mehr, als der "
        "Server erfährt.",
        "evidence/ contient des valeurs non bruitées de {unit}, et les clients détiennent les "
        "enregistrements. Une fois evidence/ effacé (dpfedadamw erase), le dossier n’en dit pas "
        "plus que ce que le serveur apprend.",
    ),
    Text("single records", "einzelnen Datensätzen", "chaque enregistrement"),
    Text("single clients", "einzelnen Klienten", "chaque client"),
    Text(
        "All noise can be drawn again and subtracted; the key is kept only where somebody asked for "
        "it (--escrow).",
        "Alles Rauschen lässt sich noch einmal ziehen und abziehen; der Schlüssel wird nur "
        "aufbewahrt, wo jemand darum bat (--escrow).",
        "Tout le bruit peut être tiré de nouveau et soustrait ; la clé n’est gardée que si "
        "quelqu’un l’a demandé (--escrow).",
    ),
    Text(
        "All noise can be drawn again and subtracted; the seed stands in spec.yaml.",
        "Alles Rauschen lässt sich noch einmal ziehen und abziehen; der Startwert steht in "
        "spec.yaml.",
        "Tout le bruit peut être tiré de nouveau et soustrait ; la graine figure dans spec.yaml.",
    ),
    Text(
        "It sees every clipped update and adds the noise itself: it must be trusted.",
        "Er sieht jeden gekappten Beitrag und fügt das Rauschen selbst hinzu: man muss ihm "
        "vertrauen.",
        "Il voit chaque mise à jour écrêtée et ajoute lui-même le bruit : il faut lui faire "
        "confiance.",
    ),
    Text(
        "Whoever gets or queries the model, or any model on the way to it",
        "Wer das Modell, oder eines auf dem Weg dorthin, bekommt oder befragt",
        "Quiconque reçoit ou interroge le modèle, ou l’un de ceux qui y ont mené",
    ),
    Text(
        "Each step's gradients are clipped and noised before they move the model.",
        "Die Gradienten jedes Schritts werden gekappt und verrauscht, bevor sie das Modell bewegen.",
        "Les gradients de chaque pas sont écrêtés et bruités avant de déplacer le modèle.",
    ),
    Text(
        "they can draw the noise again, or see the machine that trained",
        "sie das Rauschen noch einmal ziehen können oder in den Rechner sehen, der trainierte",
        "ils peuvent tirer le bruit de nouveau, ou voient la machine d’entraînement",
    ),
    Text("No finite ε is stated.", "Kein endliches ε wird genannt.", "Aucun ε fini n’est énoncé."),
    Text("No finite ε holds.", "Kein endliches ε gilt.", "Aucun ε fini ne vaut."),
    Text(
        "It sees every update as made.",
        "Er sieht jeden Beitrag, wie er ist.",
        "Il voit chaque mise à jour telle quelle.",
    ),
    Text(
        "They see models that nothing was done to.",
        "Sie sehen Modelle, mit denen nichts geschah.",
        "Ils voient des modèles auxquels rien n’a été fait.",
    ),
    Text(
        "Models are known to reveal who was in their training data. Publish it only if its records "
        "could be published.",
        "Von Modellen weiß man, dass sie verraten, wer in ihren Trainingsdaten war. Veröffentlichen "
        "Sie es nur, wenn seine Datensätze veröffentlicht werden könnten.",
        "On sait que des modèles révèlent qui figurait dans leurs données. Ne le publiez que si "
        "ses enregistrements pouvaient l’être.",
    ),
    Text(
        "Clients hold the records; nothing hides them.",
        "Die Klienten haben die Datensätze; nichts verbirgt sie.",
        "Les clients détiennent les enregistrements ; rien ne les cache.",
    ),
    Text(
        "How often each client took part is not told here; what depends on it stands in the "
        "internal report.",
        "Wie oft jeder Klient teilnahm, steht hier nicht; was davon abhängt, steht im internen "
        "Bericht.",
        "La fréquence de participation de chaque client n’est pas dite ici ; ce qui en dépend "
        "figure dans le rapport interne.",
    ),
    Text(
        "The run ended without a claim, so no limit is stated against anybody.",
        "Der Lauf endete ohne Zusage, so dass gegen niemanden eine Grenze genannt wird.",
        "L’exécution s’est achevée sans promesse ; aucune limite n’est donc énoncée.",
    ),
)

TRUST = (
    Text(
        "What rests on whose word",
        "Was auf wessen Wort beruht",
        "Ce qui repose sur la parole de qui",
    ),
    Text("Who checked", "Wer geprüft hat", "Qui a vérifié"),
    Text("What was computed again", "Was nachgerechnet wurde", "Ce qui a été recalculé"),
    Text(
        "On the trainer’s word alone",
        "Allein auf dem Wort des Trainierenden",
        "Sur la seule parole de l’entraîneur",
    ),
    Text("On nobody’s word", "Auf niemandes Wort", "Sur la parole de personne"),
    Text(
        "Nobody: no usable audit stands beside this run.",
        "Niemand: neben diesem Lauf liegt kein brauchbares Audit.",
        "Personne : aucun audit utilisable n’accompagne cette exécution.",
    ),
    Text(
        "The trainer: self-audited. Whoever signed the findings also has the trainer’s key, or is "
        "not known, so the audit shows mistakes and no fraud. Somebody else can judge and sign: "
        "dpfedadamw audit RUN_DIR --write.",
        "Der Trainierende selbst. Wer die Befunde unterschrieb, hat auch den Schlüssel des "
        "Trainierenden oder ist nicht bekannt; das Audit zeigt also Fehler und keinen Betrug. "
        "Jemand anderes kann urteilen und unterschreiben: dpfedadamw audit RUN_DIR --write.",
        "L’entraîneur lui-même. Qui a signé les constats a aussi la clé de l’entraîneur, ou n’est "
        "pas connu ; l’audit montre donc des erreurs et aucune fraude. Quelqu’un d’autre peut juger "
        "et signer : dpfedadamw audit RUN_DIR --write.",
    ),
    Text(
        "An independent auditor, as far as keys tell: the findings are signed by {auditor}, and the "
        "run by another key, {trainer}. Compare both with what you received another way; no "
        "signature shows that two keys lie in two hands.",
        "Ein unabhängiger Auditor, soweit Schlüssel es zeigen: die Befunde sind mit {auditor} "
        "unterschrieben, der Lauf mit einem anderen Schlüssel, {trainer}. Vergleichen Sie beide mit "
        "dem, was Sie auf anderem Weg erhielten; keine Unterschrift zeigt, dass zwei Schlüssel in "
        "zwei Händen liegen.",
        "Un auditeur indépendant, pour autant que les clés le disent : les constats sont signés par "
        "{auditor}, et l’exécution par une autre clé, {trainer}. Comparez les deux à ce que vous "
        "avez reçu par une autre voie ; aucune signature ne montre que deux clés sont en deux "
        "mains.",
    ),
    Text(
        "Level {level} of 4: {name}", "Stufe {level} von 4: {name}", "Niveau {level} sur 4 : {name}"
    ),
    Text("level {level} of 4", "Stufe {level} von 4", "niveau {level} sur 4"),
    Text("consistent", "stimmig", "cohérent"),
    Text("re-executed", "nachgerechnet", "recalculé"),
    Text("challenged", "ausgelost", "tiré au sort"),
    Text(
        "Nothing in the files contradicts the claim.",
        "Nichts in den Dateien widerspricht der Aussage.",
        "Rien dans les fichiers ne contredit l’affirmation.",
    ),
    Text(
        "Evidence that the trainer forged consistently would pass.",
        "Belege, die der Trainierende stimmig gefälscht hätte, bestünden.",
        "Des preuves que l’entraîneur aurait falsifiées de façon cohérente passeraient.",
    ),
    Text(
        "A loop that was recorded stays at this level: nobody else can run its program again, and "
        "nothing commits to the weights that it began with, which may have been made from the "
        "records.",
        "Eine aufgezeichnete Schleife bleibt auf dieser Stufe: niemand sonst kann ihr Programm noch "
        "einmal ausführen, und nichts legt die Anfangsgewichte fest, die aus den Datensätzen gemacht "
        "sein können.",
        "Une boucle enregistrée reste à ce niveau : personne d’autre ne peut réexécuter son "
        "programme, et rien ne fixe ses poids initiaux, qui peuvent avoir été faits à partir des "
        "enregistrements.",
    ),
    Text(
        "Level 2 needs participations computed again: dpfedadamw run SPEC --replay 20.",
        "Stufe 2 verlangt nachgerechnete Teilnahmen: dpfedadamw run SPEC --replay 20.",
        "Le niveau 2 demande des participations recalculées : dpfedadamw run SPEC --replay 20.",
    ),
    Text(
        "Participations that were drawn after training were computed again from data and key.",
        "Nach dem Training ausgeloste Teilnahmen wurden aus Daten und Schlüssel nachgerechnet.",
        "Des participations tirées après l’entraînement ont été recalculées à partir des données et "
        "de la clé.",
    ),
    Text(
        "A trainer who chose the noise, or who did this computing too, could still lie.",
        "Ein Trainierender, der das Rauschen wählte oder auch nachrechnete, könnte noch lügen.",
        "Un entraîneur qui aurait choisi le bruit, ou fait aussi ce calcul, pourrait encore mentir.",
    ),
    Text(
        "Level 3 needs a run that was announced to an auditor with another key before it began: "
        "dpfedadamw challenge.",
        "Stufe 3 verlangt einen Lauf, der vor seinem Beginn jemandem mit einem anderen "
        "Prüfschlüssel angekündigt wurde: dpfedadamw challenge.",
        "Le niveau 3 demande une exécution annoncée avant son début à un auditeur ayant une autre "
        "clé : dpfedadamw challenge.",
    ),
    Text(
        "Neither side could choose the noise, and the holder of another key computed "
        "participations again that were drawn after training.",
        "Keine Seite konnte das Rauschen wählen, und wer einen anderen Schlüssel hat, rechnete nach "
        "dem Training ausgeloste Teilnahmen nach.",
        "Aucune partie n’a pu choisir le bruit, et le détenteur d’une autre clé a recalculé des "
        "participations tirées après l’entraînement.",
    ),
    Text(
        "Participations that were not drawn may be false, and two keys in one hand would pass.",
        "Nicht ausgeloste Teilnahmen können falsch sein, und zwei Schlüssel in einer Hand "
        "bestünden.",
        "Les participations non tirées peuvent être fausses, et deux clés en une seule main "
        "passeraient.",
    ),
    Text(
        "Level 4 needs an auditor’s key and a time-stamping authority that the reader trusts: "
        "dpfedadamw verify RUN_DIR --auditor-key PUB --tsa-root PEM.",
        "Stufe 4 verlangt einen Prüfschlüssel und einen Zeitstempeldienst, denen die Lesenden "
        "trauen: dpfedadamw verify RUN_DIR --auditor-key PUB --tsa-root PEM.",
        "Le niveau 4 demande une clé d’auditeur et une autorité d’horodatage auxquelles le lecteur "
        "se fie : dpfedadamw verify RUN_DIR --auditor-key PUB --tsa-root PEM.",
    ),
    Text(
        "None of the training was computed again from the data: that batches, gradients and noise "
        "were what the evidence says rests on the trainer’s word. A consistent forgery would pass.",
        "Nichts vom Training wurde aus den Daten nachgerechnet: dass Stapel, Gradienten und "
        "Rauschen waren, was die Belege sagen, beruht auf dem Wort des Trainierenden. Eine stimmige "
        "Fälschung bestünde.",
        "Rien de l’entraînement n’a été recalculé à partir des données : que les lots, les "
        "gradients et le bruit aient été ce que disent les preuves repose sur la parole de "
        "l’entraîneur. Une falsification cohérente passerait.",
    ),
    Text(
        "Every participation was computed again from data and key, and agrees.",
        "Jede Teilnahme wurde aus Daten und Schlüssel nachgerechnet und stimmt.",
        "Chaque participation a été recalculée à partir des données et de la clé, et concorde.",
    ),
    Text(
        "Computing the training again did not lead to the same: see the audit.",
        "Das Nachrechnen des Trainings führte nicht zu demselben: siehe das Audit.",
        "Recalculer l’entraînement n’a pas mené au même résultat : voir l’audit.",
    ),
    Text(
        "{drawn} participations, drawn after the run, were computed again from data and key, and "
        "agree. The rest of what the evidence says rests on the trainer’s word.",
        "{drawn} Teilnahmen, nach dem Lauf ausgelost, wurden aus Daten und Schlüssel nachgerechnet "
        "und stimmen. Was die Belege sonst sagen, beruht auf dem Wort des Trainierenden.",
        "{drawn} participations, tirées après l’exécution, ont été recalculées à partir des données "
        "et de la clé, et concordent. Le reste de ce que disent les preuves repose sur la parole de "
        "l’entraîneur.",
    ),
    Text("{drawn} of {all}", "{drawn} von {all}", "{drawn} sur {all}"),
    Text(
        "Participations that were drawn after the run were computed again from data and key, and "
        "agree; how many, the internal report says. The rest rests on the trainer’s word.",
        "Nach dem Lauf ausgeloste Teilnahmen wurden aus Daten und Schlüssel nachgerechnet und "
        "stimmen; wie viele, sagt der interne Bericht. Der Rest beruht auf dem Wort des "
        "Trainierenden.",
        "Des participations tirées après l’exécution ont été recalculées à partir des données et de "
        "la clé, et concordent ; le rapport interne dit combien. Le reste repose sur la parole de "
        "l’entraîneur.",
    ),
    Text(
        "That the records are the people’s own, each with one client and once; that there was no "
        "further training on them; that no copy of data, evidence or key went elsewhere; that the "
        "key of the noise was drawn by chance.",
        "Dass die Datensätze von den Menschen selbst stammen, jeder bei einem Klienten und einmal; "
        "dass mit ihnen nicht weiter trainiert wurde; dass keine Kopie von Daten, Belegen oder "
        "Schlüssel anderswohin ging; dass der Schlüssel des Rauschens zufällig gezogen wurde.",
        "Que les enregistrements sont bien ceux des personnes, chacun chez un client et une fois ; "
        "qu’il n’y a pas eu d’autre entraînement sur eux ; qu’aucune copie des données, des preuves "
        "ou de la clé n’est partie ailleurs ; que la clé du bruit a été tirée au hasard.",
    ),
    Text(
        "That the records are the people’s own, each with one client and once; that there was no "
        "further training on them; that no copy of data, evidence or key went elsewhere.",
        "Dass die Datensätze von den Menschen selbst stammen, jeder bei einem Klienten und einmal; "
        "dass mit ihnen nicht weiter trainiert wurde; dass keine Kopie von Daten, Belegen oder "
        "Schlüssel anderswohin ging.",
        "Que les enregistrements sont bien ceux des personnes, chacun chez un client et une fois ; "
        "qu’il n’y a pas eu d’autre entraînement sur eux ; qu’aucune copie des données, des preuves "
        "ou de la clé n’est partie ailleurs.",
    ),
    Text(
        "That the records are the people’s own, each with one client and once; that there was no "
        "further training on them; that no copy of data, evidence or seed went elsewhere.",
        "Dass die Datensätze von den Menschen selbst stammen, jeder bei einem Klienten und einmal; "
        "dass mit ihnen nicht weiter trainiert wurde; dass keine Kopie von Daten, Belegen oder "
        "Startwert anderswohin ging.",
        "Que les enregistrements sont bien ceux des personnes, chacun chez un client et une fois ; "
        "qu’il n’y a pas eu d’autre entraînement sur eux ; qu’aucune copie des données, des preuves "
        "ou de la graine n’est partie ailleurs.",
    ),
    Text(
        "The audit passed what anybody can check from the files: {listed}.",
        "Das Audit hat bestätigt, was jeder an den Dateien prüfen kann: {listed}.",
        "L’audit a confirmé ce que chacun peut vérifier sur les fichiers : {listed}.",
    ),
    Text("{first}; {others}", "{first}; {others}", "{first} ; {others}"),
    Text(
        "the files are complete and chained",
        "die Dateien sind vollständig und verkettet",
        "les fichiers sont complets et chaînés",
    ),
    Text(
        "ε is what the recorded steps cost, composed by a second program",
        "ε ist, was die aufgezeichneten Schritte kosten, von einem zweiten Programm "
        "zusammengerechnet",
        "ε est ce que coûtent les pas enregistrés, composé par un second programme",
    ),
    Text(
        "the published model is the one that the recorded rounds end in",
        "das veröffentlichte Modell ist das, in dem die aufgezeichneten Runden enden",
        "le modèle publié est celui auquel aboutissent les tours enregistrés",
    ),
)

HAZARDS = (
    Text("What this does not mean", "Was das nicht bedeutet", "Ce que cela ne signifie pas"),
    Text("The unit is one record", "Geschützt ist ein Datensatz", "L’unité est un enregistrement"),
    Text(
        "A person with k records is protected k times less: ε grows to about k·ε, and δ faster. "
        "Whole clients are not hidden.",
        "Ein Mensch mit k Datensätzen ist k-mal weniger geschützt: ε wächst auf etwa k·ε, δ "
        "schneller. Ganze Klienten bleiben nicht verborgen.",
        "Une personne ayant k enregistrements est k fois moins protégée : ε monte à environ k·ε, et "
        "δ plus vite. Les clients entiers ne sont pas cachés.",
    ),
    Text("The unit is one client", "Geschützt ist ein Klient", "L’unité est un client"),
    Text(
        "One client with all its records is hidden among the others. Somebody whose records lie "
        "with k clients is protected k times less: ε grows to about k·ε, and δ faster.",
        "Ein Klient mit allen seinen Datensätzen ist unter den anderen verborgen. Wessen Datensätze "
        "bei k Klienten liegen, ist k-mal weniger geschützt: ε wächst auf etwa k·ε, δ schneller.",
        "Un client avec tous ses enregistrements est caché parmi les autres. Qui a des "
        "enregistrements chez k clients est k fois moins protégé : ε monte à environ k·ε, et δ plus "
        "vite.",
    ),
    Text(
        "What a record says is hidden, not that it is there",
        "Verborgen ist, was ein Datensatz sagt, nicht, dass es ihn gibt",
        "Ce que dit un enregistrement est caché, non qu’il existe",
    ),
    Text(
        "Neighbouring data sets hold equally many records, of which one differs in content. How "
        "many records a client has may be learnt from the run.",
        "Benachbarte Datenbestände haben gleich viele Datensätze, von denen einer anderen Inhalt "
        "hat. Wie viele Datensätze ein Klient hat, lässt sich aus dem Lauf erfahren.",
        "Des jeux voisins ont autant d’enregistrements, dont un diffère par son contenu. Le nombre "
        "d’enregistrements d’un client peut être appris de l’exécution.",
    ),
    Text(
        "Facts about the population stay learnable",
        "Tatsachen über die Bevölkerung bleiben erlernbar",
        "Les faits sur la population restent apprenables",
    ),
    Text(
        "Differential privacy limits what taking part reveals. What the model learns from everybody "
        "else may still tell something about a person.",
        "Differential Privacy begrenzt, was die Teilnahme verrät. Was das Modell von allen anderen "
        "lernt, kann über einen Menschen trotzdem etwas sagen.",
        "La confidentialité différentielle limite ce que révèle la participation. Ce que le modèle "
        "apprend de tous les autres peut tout de même dire quelque chose d’une personne.",
    ),
    Text(
        "δ is a chance of failure",
        "δ ist die Wahrscheinlichkeit eines Versagens",
        "δ est une probabilité d’échec",
    ),
    Text(
        "Keep δ·n well below one. With probability up to δ the bound ε need not hold.",
        "Halten Sie δ·n weit unter eins. Mit Wahrscheinlichkeit bis zu δ muss die Schranke ε nicht "
        "gelten.",
        "Gardez δ·n bien au-dessous de un. Avec une probabilité allant jusqu’à δ, la borne ε peut "
        "ne pas valoir.",
    ),
    Text(
        "Keep δ·N well below one. With probability up to δ the bound ε need not hold.",
        "Halten Sie δ·N weit unter eins. Mit Wahrscheinlichkeit bis zu δ muss die Schranke ε nicht "
        "gelten.",
        "Gardez δ·N bien au-dessous de un. Avec une probabilité allant jusqu’à δ, la borne ε peut "
        "ne pas valoir.",
    ),
    Text(
        "Who took part must stay unknown",
        "Wer teilnahm, muss unbekannt bleiben",
        "Qui a participé doit rester inconnu",
    ),
    Text(
        "The loss towards a third party counts on chance participation. Somebody who learns that a "
        "client took part in a round has nothing of it.",
        "Der Verlust gegenüber Dritten zählt auf zufällige Teilnahme. Wer erfährt, dass ein Klient "
        "an einer Runde teilnahm, für den gilt davon nichts.",
        "La perte envers un tiers compte sur une participation au hasard. Elle ne vaut rien contre "
        "qui apprend qu’un client a participé à un tour.",
    ),
    Text(
        "Empirical checks have limited power",
        "Messungen haben begrenzte Schärfe",
        "Les contrôles empiriques ont une puissance limitée",
    ),
    Text(
        "Each check states the smallest fault that it would notice. Smaller ones can pass.",
        "Jede Prüfung nennt den kleinsten Fehler, den sie bemerken würde. Kleinere können "
        "durchgehen.",
        "Chaque contrôle indique le plus petit défaut qu’il remarquerait. De plus petits peuvent "
        "passer.",
    ),
    Text("Not covered", "Nicht abgedeckt", "Non couvert"),
    Text(
        "Running times, memory, floating-point side channels, malicious clients and the security of "
        "the machines are outside the guarantee.",
        "Laufzeiten, Speicher, Seitenkanäle der Gleitkommarechnung, böswillige Klienten und die "
        "Sicherheit der Rechner liegen außerhalb der Garantie.",
        "Les temps d’exécution, la mémoire, les canaux auxiliaires du calcul flottant, les clients "
        "malveillants et la sécurité des machines sont hors de la garantie.",
    ),
    Text("No legal conclusion", "Kein rechtlicher Schluss", "Aucune conclusion juridique"),
    Text(
        "This report does not decide whether the model is anonymous or the processing lawful. That "
        "is for the people named under governance.",
        "Dieser Bericht entscheidet nicht, ob das Modell anonym oder die Verarbeitung rechtmäßig "
        "ist. Das ist Sache der unter Verantwortung Genannten.",
        "Ce rapport ne décide pas si le modèle est anonyme ni si le traitement est licite. Cela "
        "revient aux personnes nommées sous gouvernance.",
    ),
    Text(
        "Membership and content can leak",
        "Zugehörigkeit und Inhalt können durchsickern",
        "L’appartenance et le contenu peuvent fuir",
    ),
    Text(
        "Without noise and clipping, models and updates are known to reveal who was in the training "
        "data, and sometimes the records themselves.",
        "Von Modellen und Beiträgen ohne Rauschen und Kappung weiß man, dass sie verraten, wer in "
        "den Trainingsdaten war, manchmal die Datensätze selbst.",
        "Sans bruit ni écrêtage, on sait que modèles et mises à jour révèlent qui figurait dans les "
        "données, et parfois les enregistrements eux-mêmes.",
    ),
    Text(
        "Federated is not private",
        "Föderiert ist nicht vertraulich",
        "Fédéré n’est pas confidentiel",
    ),
    Text(
        "That records stay with their clients does not stop updates from revealing them.",
        "Dass Datensätze bei ihren Klienten bleiben, hindert Beiträge nicht daran, sie zu verraten.",
        "Que les enregistrements restent chez leurs clients n’empêche pas les mises à jour de les "
        "révéler.",
    ),
)

SUMMARY = (
    Text("What was not verified", "Was nicht geprüft wurde", "Ce qui n’a pas été vérifié"),
    Text(
        "What failed or was not verified",
        "Was durchfiel oder nicht geprüft wurde",
        "Ce qui a échoué ou n’a pas été vérifié",
    ),
    Text("The run", "Der Lauf", "L’exécution"),
    Text("Contradicted", "Widerlegt", "Contredit"),
    Text("Not verified", "Nicht geprüft", "Non vérifié"),
    Text(
        "No check that applies was left open.",
        "Keine anwendbare Prüfung blieb offen.",
        "Aucun contrôle applicable n’est resté ouvert.",
    ),
    Text(
        "1 check does not apply to this run.",
        "1 Prüfung trifft auf diesen Lauf nicht zu.",
        "1 contrôle ne s’applique pas à cette exécution.",
    ),
    Text(
        "{count} checks do not apply to this run.",
        "{count} Prüfungen treffen auf diesen Lauf nicht zu.",
        "{count} contrôles ne s’appliquent pas à cette exécution.",
    ),
    Text(
        "And {count} more, in {where}.",
        "Und {count} weitere, in {where}.",
        "Et {count} autres, en {where}.",
    ),
    Text("section {number}", "Abschnitt {number}", "section {number}"),
    Text(
        "Outside the guarantee, whatever the verdict: {listed} ({where}).",
        "Außerhalb der Garantie, wie auch immer das Urteil lautet: {listed} ({where}).",
        "Hors de la garantie, quel que soit le verdict : {listed} ({where}).",
    ),
    Text("{first}, {others}", "{first}, {others}", "{first}, {others}"),
    Text(
        "choosing hyper-parameters", "die Wahl der Hyperparameter", "le choix des hyperparamètres"
    ),
    Text(
        "trials outside the private selection",
        "Versuche außerhalb der privaten Auswahl",
        "les essais hors de la sélection privée",
    ),
    Text("test metrics", "Testergebnisse", "les mesures de test"),
    Text("client sizes", "Größen der Klienten", "la taille des clients"),
    Text(
        "number and sizes of clients",
        "Zahl und Größen der Klienten",
        "le nombre et la taille des clients",
    ),
    Text("preparing the data", "die Vorbereitung der Daten", "la préparation des données"),
    Text("pre-training", "Vortraining", "le pré-entraînement"),
    Text(
        "public validation records",
        "öffentliche Validierungsdaten",
        "les données de validation publiques",
    ),
    Text("everything", "alles", "tout"),
    Text(" {text}", " {text}", " {text}"),
    Text("The whole run.", "Der ganze Lauf.", "Toute l’exécution."),
    Text("The claim.", "Die Zusage.", "La promesse."),
    Text(
        "No usable audit.json was found.",
        "Kein brauchbares audit.json wurde gefunden.",
        "Aucun audit.json utilisable n’a été trouvé.",
    ),
    Text(
        "The ledger ends without one.",
        "Das Kontobuch endet ohne sie.",
        "Le registre s’achève sans elle.",
    ),
    Text(
        "The internal report has the details.",
        "Einzelheiten stehen im internen Bericht.",
        "Les détails sont dans le rapport interne.",
    ),
    Text("{file}: missing.", "{file}: fehlt.", "{file} : manque."),
    Text("Algorithm", "Algorithmus", "Algorithme"),
    Text("Model", "Modell", "Modèle"),
    Text("Data", "Daten", "Données"),
    Text("Training", "Training", "Entraînement"),
    Text("Test accuracy", "Testgenauigkeit", "Exactitude de test"),
    Text("Majority rate", "Rate der Mehrheit", "Taux de la majorité"),
    Text(
        "By accuracy, the model is no better than always giving the most frequent answer, which has {rate}.",
        "Nach der Genauigkeit ist das Modell nicht besser, als immer die häufigste Antwort zu geben; die hat {rate}.",
        "Par son exactitude, le modèle ne fait pas mieux que de toujours donner la réponse la plus fréquente, qui a {rate}.",
    ),
    Text("Randomness", "Zufall", "Aléa"),
    Text("Model file", "Modelldatei", "Fichier du modèle"),
    Text("not measured", "nicht gemessen", "non mesurée"),
    Text("missing", "fehlt", "manque"),
    Text("release", "release", "release"),
    Text("reproducible", "reproducible", "reproducible"),
    Text(
        "{name}, {count} trainable parameters",
        "{name}, {count} trainierbare Parameter",
        "{name}, {count} paramètres entraînables",
    ),
    Text(
        "{name}, {count} training records at {clients} clients",
        "{name}, {count} Trainingsdatensätze bei {clients} Klienten",
        "{name}, {count} enregistrements chez {clients} clients",
    ),
    Text(
        "{name}, {count} training records",
        "{name}, {count} Trainingsdatensätze",
        "{name}, {count} enregistrements",
    ),
    Text("{name}, {count} clients", "{name}, {count} Klienten", "{name}, {count} clients"),
    Text(
        "{done} recorded steps",
        "{done} aufgezeichnete Schritte",
        "{done} pas enregistrés",
    ),
    Text(
        "{done} recorded rounds, {clients} clients a round",
        "{done} aufgezeichnete Runden, {clients} Klienten je Runde",
        "{done} tours enregistrés, {clients} clients par tour",
    ),
    Text(
        "{done} of {rounds} rounds, {clients} clients a round, {steps} local steps",
        "{done} von {rounds} Runden, {clients} Klienten je Runde, {steps} lokale Schritte",
        "{done} tours sur {rounds}, {clients} clients par tour, {steps} pas locaux",
    ),
    Text(
        "{done} of {rounds} rounds, {clients} clients a round on average, {steps} local steps",
        "{done} von {rounds} Runden, im Mittel {clients} Klienten je Runde, {steps} lokale Schritte",
        "{done} tours sur {rounds}, {clients} clients par tour en moyenne, {steps} pas locaux",
    ),
)

# What the audit's checks ask, in a few words.
CHECKS = (
    Text(
        "Are the released coordinates a public choice?",
        "Sind die gesendeten Koordinaten öffentlich gewählt?",
        "Les coordonnées publiées sont-elles un choix public ?",
    ),
    Text(
        "Could anyone draw the noise again?",
        "Könnte jemand das Rauschen noch einmal ziehen?",
        "Quelqu’un pourrait-il tirer le bruit de nouveau ?",
    ),
    Text(
        "Did the loop do what it declares, and no more?",
        "Tat die Schleife, was sie erklärt, und nicht mehr?",
        "La boucle a-t-elle fait ce qu’elle déclare, et rien de plus ?",
    ),
    Text(
        "Did the run do what its spec promised, and no more?",
        "Tat der Lauf, was seine Vorgabe zusagt, und nicht mehr?",
        "L’exécution a-t-elle fait ce que promet sa spécification, et rien de plus ?",
    ),
    Text(
        "Do clients take part by independent chance?",
        "Nehmen Klienten unabhängig und zufällig teil?",
        "Les clients participent-ils par hasard indépendant ?",
    ),
    Text(
        "Do the parameters move by the noised gradients alone?",
        "Bewegen nur die verrauschten Gradienten die Parameter?",
        "Les paramètres ne bougent-ils que par les gradients bruités ?",
    ),
    Text(
        "Do the public files keep who took part to themselves?",
        "Verschweigen die öffentlichen Dateien, wer teilnahm?",
        "Les fichiers publics taisent-ils qui a participé ?",
    ),
    Text(
        "Does computing it again from the data lead to the same?",
        "Führt das Nachrechnen aus den Daten zu demselben?",
        "Le recalcul à partir des données mène-t-il au même résultat ?",
    ),
    Text(
        "Does each record belong to one client, once?",
        "Gehört jeder Datensatz einem Klienten, einmal?",
        "Chaque enregistrement appartient-il à un client, une fois ?",
    ),
    Text(
        "Does nothing leave a round but its noised mean update?",
        "Verlässt eine Runde nur ihr verrauschtes Mittel?",
        "Rien ne sort-il d’un tour que sa moyenne bruitée ?",
    ),
    Text(
        "Does nothing outside the evidence tell more than it may?",
        "Verrät außerhalb der Belege nichts mehr, als es darf?",
        "Hors des preuves, rien n’en dit-il plus que permis ?",
    ),
    Text(
        "Does one client move the clipped sum by at most C?",
        "Bewegt ein Klient die gekappte Summe um höchstens C?",
        "Un client déplace-t-il la somme écrêtée d’au plus C ?",
    ),
    Text(
        "Does one record move the clipped sum by no more than the noise is made for?",
        "Bewegt ein Datensatz die gekappte Summe nur so weit, wie das Rauschen verbirgt?",
        "Un enregistrement ne déplace-t-il la somme écrêtée que de ce que le bruit cache ?",
    ),
    Text(
        "Is all that leaves a client a function of noised values?",
        "Folgt alles, was einen Klienten verlässt, aus verrauschten Werten?",
        "Tout ce qui quitte un client découle-t-il de valeurs bruitées ?",
    ),
    Text(
        "Is it disclosed whether the noise can be drawn again?",
        "Wird offengelegt, ob sich das Rauschen noch einmal ziehen lässt?",
        "Est-il dit si le bruit peut être tiré de nouveau ?",
    ),
    Text(
        "Is nothing done to the records outside the budget but what is said?",
        "Geschieht mit den Datensätzen außerhalb des Budgets nur, was gesagt wird?",
        "Hors du budget, rien n’est-il fait des enregistrements que ce qui est dit ?",
    ),
    Text(
        "Is the claimed epsilon what the ledger's charges cost?",
        "Ist das zugesagte Epsilon, was die Posten des Kontobuchs kosten?",
        "L’epsilon promis est-il ce que coûtent les écritures du registre ?",
    ),
    Text(
        "Is the epsilon that the loop prints what its steps cost?",
        "Ist das Epsilon der Schleife, was ihre Schritte kosten?",
        "L’epsilon de la boucle est-il ce que coûtent ses pas ?",
    ),
    Text(
        "Is the noise as large as the ledger says, everywhere and every time?",
        "Ist das Rauschen überall und jedes Mal so groß, wie das Kontobuch sagt?",
        "Le bruit est-il partout et toujours aussi grand que le dit le registre ?",
    ),
    Text(
        "Is the noise's bias of the second moment exactly what is corrected?",
        "Wird genau die Verzerrung des zweiten Moments durch das Rauschen korrigiert?",
        "Le biais du second moment dû au bruit est-il exactement celui qui est corrigé ?",
    ),
    Text(
        "Did training begin with the weights that were committed to?",
        "Begann das Training mit den Gewichten, die zuvor festgelegt wurden?",
        "L’entraînement a-t-il commencé par les poids fixés au préalable ?",
    ),
    Text(
        "Is the published model the one that the last round left?",
        "Ist das veröffentlichte Modell das der letzten Runde?",
        "Le modèle publié est-il celui du dernier tour ?",
    ),
    Text(
        "Is the recording complete and its ledger unaltered?",
        "Ist die Aufzeichnung vollständig und ihr Kontobuch unverändert?",
        "L’enregistrement est-il complet et son registre inchangé ?",
    ),
    Text(
        "Is the run complete and its ledger unaltered?",
        "Ist der Lauf vollständig und sein Kontobuch unverändert?",
        "L’exécution est-elle complète et son registre inchangé ?",
    ),
    Text(
        "Is ε refuted by canaries?",
        "Widerlegen Kanarienwerte das ε?",
        "Des canaris réfutent-ils ε ?",
    ),
    Text(
        "Were the batches drawn as the accounting takes for granted?",
        "Wurden die Stapel gezogen, wie die Rechnung voraussetzt?",
        "Les lots ont-ils été tirés comme le suppose le calcul ?",
    ),
    Text(
        "Were the clients of each round drawn by chance?",
        "Wurden die Klienten jeder Runde zufällig gezogen?",
        "Les clients de chaque tour ont-ils été tirés au hasard ?",
    ),
    Text(
        "What does the run cost towards the server and towards a third party?",
        "Was kostet der Lauf gegenüber dem Server und gegenüber Dritten?",
        "Que coûte l’exécution envers le serveur et envers un tiers ?",
    ),
    Text("critical", "kritisch", "critique"),
    Text("theoretical", "theoretisch", "théorique"),
    Text("Measured", "Gemessen", "Mesuré"),
    Text("Claim", "Zusage", "Promesse"),
    Text("Accepted", "Angenommen", "Accepté"),
    Text("Power", "Schärfe", "Puissance"),
    Text("Limits", "Grenzen", "Limites"),
)

HEADINGS = (
    Text("The guarantee", "Die Garantie", "La garantie"),
    Text("It holds only if", "Sie gilt nur, wenn", "Elle ne vaut que si"),
    Text("Mechanism and sampling", "Mechanismus und Ziehung", "Mécanisme et échantillonnage"),
    Text("Accounting", "Abrechnung", "Comptabilité"),
    Text("Events", "Ereignisse", "Événements"),
    Text(
        "Closed forms from the literature",
        "Geschlossene Formeln aus der Literatur",
        "Formules closes de la littérature",
    ),
    Text("Clients", "Klienten", "Clients"),
    Text(
        "What lies outside the budget",
        "Was außerhalb des Budgets liegt",
        "Ce qui est hors du budget",
    ),
    Text("The audit", "Das Audit", "L’audit"),
    Text(
        "Utility, communication and computation",
        "Nutzen, Übertragung und Rechnung",
        "Utilité, communication et calcul",
    ),
    Text("Governance", "Verantwortung", "Gouvernance"),
    Text("How to verify", "So prüfen Sie nach", "Comment vérifier"),
    Text(
        "Annex: the checks in detail",
        "Anhang: die Prüfungen im Einzelnen",
        "Annexe : les contrôles en détail",
    ),
    Text(
        "How often clients took part",
        "Wie oft Klienten teilnahmen",
        "Fréquence de participation des clients",
    ),
    Text(
        "Privacy spent over the rounds",
        "Verbrauchter Schutz über die Runden",
        "Confidentialité dépensée au fil des tours",
    ),
    Text(
        "Privacy profile of the client with the largest loss",
        "Profil des Klienten mit dem größten Verlust",
        "Profil du client à la plus grande perte",
    ),
    Text(
        "Privacy profile towards a third party",
        "Profil gegenüber Dritten",
        "Profil envers un tiers",
    ),
    Text(
        "Privacy loss and size of each client",
        "Verlust und Größe jedes Klienten",
        "Perte et taille de chaque client",
    ),
    Text(
        "Privacy loss of each client towards the server",
        "Verlust jedes Klienten gegenüber dem Server",
        "Perte de chaque client envers le serveur",
    ),
    Text("Quantiles of the noise", "Quantile des Rauschens", "Quantiles du bruit"),
    Text(
        "What is left of the second moment once the noise’s share is subtracted",
        "Was vom zweiten Moment bleibt, wenn der Anteil des Rauschens abgezogen ist",
        "Ce qui reste du second moment une fois retirée la part du bruit",
    ),
    Text(
        "Test accuracy over the rounds",
        "Testgenauigkeit über die Runden",
        "Exactitude de test au fil des tours",
    ),
    Text(
        "Accuracy against the privacy spent",
        "Genauigkeit gegen verbrauchten Schutz",
        "Exactitude selon la confidentialité dépensée",
    ),
    Text(
        "Test error over the rounds",
        "Testfehler über die Runden",
        "Erreur de test au fil des tours",
    ),
    Text(
        "Its AUC is {auc}, and that of one answer 0.50.",
        "Seine AUC ist {auc}, die einer einzigen Antwort 0,50.",
        "Son AUC est de {auc}, celui d’une seule réponse de 0,50.",
    ),
    Text("Measures of the finished model", "Maße des fertigen Modells", "Mesures du modèle fini"),
    Text("Measure", "Maß", "Mesure"),
    Text("Finished model", "Fertiges Modell", "Modèle fini"),
    Text("Meaning", "Bedeutung", "Sens"),
    Text("majority rate", "Rate der Mehrheit", "taux de la majorité"),
    Text("average precision", "mittlere Genauigkeit", "précision moyenne"),
    Text("balanced accuracy", "ausgewogene Genauigkeit", "exactitude équilibrée"),
    Text("log loss", "Log-Verlust", "perte logarithmique"),
    Text("calibration error", "Kalibrierungsfehler", "erreur de calibration"),
    Text(
        "accuracy of always giving the most frequent answer",
        "Genauigkeit, wenn immer die häufigste Antwort gegeben wird",
        "exactitude si l’on donne toujours la réponse la plus fréquente",
    ),
    Text(
        "chance that a record of a class is ranked above one of another; 0.5 is guessing",
        "Chance, dass ein Datensatz einer Klasse über einem einer anderen steht; 0,5 ist Raten",
        "chance qu’un enregistrement d’une classe soit classé au-dessus d’un d’une autre ; 0,5 est le hasard",
    ),
    Text(
        "mean precision over all recalls; guessing has the share of the class",
        "Mittel der Präzision über alle Trefferquoten; Raten hat den Anteil der Klasse",
        "moyenne de la précision sur tous les rappels ; le hasard a la part de la classe",
    ),
    Text(
        "harmonic mean of precision and recall; 0 where a class is never found",
        "harmonisches Mittel von Präzision und Trefferquote; 0, wo eine Klasse nie gefunden wird",
        "moyenne harmonique de la précision et du rappel ; 0 si une classe n’est jamais trouvée",
    ),
    Text(
        "mean recall of the classes; of always giving one answer it is 1 / classes",
        "mittlere Trefferquote der Klassen; bei immer einer Antwort ist sie 1 / Klassen",
        "rappel moyen des classes ; avec toujours une seule réponse il est de 1 / classes",
    ),
    Text(
        "mean cross-entropy, in nats; 0 is perfect",
        "mittlere Kreuzentropie in nats; 0 ist vollkommen",
        "entropie croisée moyenne, en nats ; 0 est parfait",
    ),
    Text(
        "how far confidence is from accuracy on average (15 bins); 0 is perfect",
        "wie weit Zuversicht und Genauigkeit im Mittel auseinander liegen (15 Fächer); 0 ist vollkommen",
        "écart moyen entre la confiance et l’exactitude (15 classes) ; 0 est parfait",
    ),
    Text(
        "a metric of the user’s own",
        "ein eigenes Maß des Nutzers",
        "une mesure propre à l’utilisateur",
    ),
    Text(
        "AUC, average precision and F1 are means over each class against the rest.",
        "AUC, mittlere Genauigkeit und F1 sind Mittel über jede Klasse gegen die übrigen.",
        "AUC, précision moyenne et F1 sont des moyennes de chaque classe contre les autres.",
    ),
    Text(
        "AUC, average precision and F1 are of class {name}.",
        "AUC, mittlere Genauigkeit und F1 sind die der Klasse {name}.",
        "AUC, précision moyenne et F1 sont ceux de la classe {name}.",
    ),
    Text("Confusion matrix", "Verwechslungsmatrix", "Matrice de confusion"),
    Text(
        "Public test records by their class (rows) and by the final model’s answer (columns). Shade is the share of a row.",
        "Öffentliche Testdatensätze nach ihrer Klasse (Zeilen) und der Antwort des fertigen Modells (Spalten). Die Tönung ist der Anteil an einer Zeile.",
        "Enregistrements de test publics selon leur classe (lignes) et la réponse du modèle final (colonnes). La teinte est la part d’une ligne.",
    ),
    Text(
        "Matrix of {count} classes: {right} of {total} test records are answered rightly; the most frequent error is class {row} answered as {column}, {most} times.",
        "Matrix von {count} Klassen: {right} von {total} Testdatensätzen werden richtig beantwortet; der häufigste Fehler ist Klasse {row}, als {column} beantwortet, {most} mal.",
        "Matrice de {count} classes : {right} sur {total} enregistrements de test ont la bonne réponse ; l’erreur la plus fréquente est la classe {row} répondue {column}, {most} fois.",
    ),
    Text(
        "Test measures over the rounds",
        "Testmaße über die Runden",
        "Mesures de test au fil des tours",
    ),
    Text("Test RMSE", "RMSE im Test", "RMSE de test"),
    Text("RMSE", "RMSE", "RMSE"),
    Text("MAE", "MAE", "MAE"),
    Text("R²", "R²", "R²"),
    Text("micro-F1", "Mikro-F1", "micro-F1"),
    Text(
        "Accuracy is the share of test records all of whose labels are right (exact match).",
        "Genauigkeit ist der Anteil der Testdatensätze, deren Etiketten alle stimmen (exakte "
        "Übereinstimmung).",
        "L’exactitude est la part des enregistrements de test dont toutes les étiquettes sont "
        "justes (correspondance exacte).",
    ),
    Text(
        "Accuracy is the share of tokens with the right class, without those that count for "
        "nothing.",
        "Genauigkeit ist der Anteil der Token mit der richtigen Klasse, ohne jene, die nicht zählen.",
        "L’exactitude est la part des jetons dont la classe est juste, sans ceux qui ne comptent "
        "pas.",
    ),
    Text(
        "The model tells numbers, so there is no accuracy: RMSE and MAE are in the targets’ unit, "
        "R² is the share of their variance that is explained.",
        "Das Modell nennt Zahlen, also gibt es keine Genauigkeit: RMSE und MAE haben die Einheit "
        "der Zielwerte, R² ist der Anteil ihrer Varianz, der erklärt wird.",
        "Le modèle donne des nombres, il n’y a donc pas d’exactitude : RMSE et MAE sont dans "
        "l’unité des cibles, R² est la part de leur variance qui est expliquée.",
    ),
    Text(
        "Root mean square error of the global model on the test records, in the targets’ unit, "
        "released without noise.",
        "Wurzel des mittleren quadratischen Fehlers des globalen Modells auf den Testdatensätzen, "
        "in der Einheit der Zielwerte, ohne Rauschen veröffentlicht.",
        "Racine de l’erreur quadratique moyenne du modèle global sur les enregistrements de test, "
        "dans l’unité des cibles, publiée sans bruit.",
    ),
    Text(
        "Line chart: the root mean square error goes from {first} after round {one} to {last} after "
        "round {other}; its smallest value is {least}.",
        "Liniendiagramm: die Wurzel des mittleren quadratischen Fehlers geht von {first} nach Runde "
        "{one} auf {last} nach Runde {other}; ihr kleinster Wert ist {least}.",
        "Courbe : la racine de l’erreur quadratique moyenne va de {first} après le tour {one} à "
        "{last} après le tour {other} ; sa plus petite valeur est {least}.",
    ),
    Text("Test accuracy by class", "Testgenauigkeit nach Klasse", "Exactitude de test par classe"),
    Text("Server, as it happened", "Server, wie es kam", "Serveur, tel que cela s’est passé"),
    Text(
        "Server, worst case (in every round)",
        "Server, schlimmster Fall (in jeder Runde)",
        "Serveur, au pire (à chaque tour)",
    ),
    Text(
        "Server, most in the rounds taken part in",
        "Server, höchstens in den Runden mit Teilnahme",
        "Serveur, au plus dans les tours de participation",
    ),
    Text("Third party", "Dritte", "Tiers"),
    Text("View", "Sicht", "Point de vue"),
    Text("Towards", "Gegenüber", "Envers"),
    Text("Composed by", "Zusammengerechnet mit", "Composé par"),
    Text("Conversion", "Umrechnung", "Conversion"),
    Text("Used for", "Verwendet für", "Utilisé pour"),
    Text("Source", "Quelle", "Source"),
    Text("Closed form", "Geschlossene Formel", "Formule close"),
    Text("Formula", "Formel", "Formule"),
    Text("Said to be for", "Angeblich für", "Dite valoir pour"),
    Text("Reading", "Lesart", "Lecture"),
    Text("Client", "Klient", "Client"),
    Text("Records", "Datensätze", "Enreg."),
    Text("Rate q", "Rate q", "Taux q"),
    Text("Rounds", "Runden", "Tours"),
    Text("Steps", "Schritte", "Pas"),
    Text("ε (PLD)", "ε (PLD)", "ε (PLD)"),
    Text("ε (RDP)", "ε (RDP)", "ε (RDP)"),
    Text("ε (RDP, classic)", "ε (RDP, kl.)", "ε (RDP, cl.)"),
    Text("δ·records", "δ·Datens.", "δ·enreg."),
    Text("Block", "Block", "Bloc"),
    Text("Coordinates", "Koordinaten", "Coordonnées"),
    Text("Predicted shift", "Vorhergesagte Verschiebung", "Décalage prédit"),
    Text("± 99.9 %", "± 99,9 %", "± 99,9 %"),
    Text("Released mean", "Freigegebenes Mittel", "Moyenne publiée"),
    Text("Round", "Runde", "Tour"),
    Text("Test loss", "Testverlust", "Perte de test"),
    Text("Communication and computation", "Übertragung und Rechnung", "Communication et calcul"),
    Text("Amount", "Menge", "Quantité"),
    Text("File", "Datei", "Fichier"),
    Text("Check", "Prüfung", "Contrôle"),
    Text("What is at stake", "Worum es geht", "Ce qui est en jeu"),
    Text("Severity", "Schwere", "Gravité"),
    Text("ε", "ε", "ε"),
    Text("δ", "δ", "δ"),
    Text("SHA-256", "SHA-256", "SHA-256"),
)

GOVERNANCE = (
    Text("Controller", "Verantwortlicher", "Responsable du traitement"),
    Text("Purpose of the processing", "Zweck der Verarbeitung", "Finalité du traitement"),
    Text("Lawful basis", "Rechtsgrundlage", "Base juridique"),
    Text(
        "Necessity and proportionality",
        "Notwendigkeit und Verhältnismäßigkeit",
        "Nécessité et proportionnalité",
    ),
    Text(
        "Categories of data and of people",
        "Kategorien von Daten und Personen",
        "Catégories de données et de personnes",
    ),
    Text("Collection of the data", "Erhebung der Daten", "Collecte des données"),
    Text(
        "Access to records, evidence and internal report",
        "Zugang zu Datensätzen, Belegen und internem Bericht",
        "Accès aux enregistrements, aux preuves et au rapport interne",
    ),
    Text("Retention", "Aufbewahrung", "Conservation"),
    Text(
        "Recipients of model and reports",
        "Empfänger von Modell und Berichten",
        "Destinataires du modèle et des rapports",
    ),
    Text(
        "Other releases of the same data",
        "Andere Veröffentlichungen derselben Daten",
        "Autres publications des mêmes données",
    ),
    Text(
        "What others know, and could link",
        "Was andere wissen und verknüpfen könnten",
        "Ce que d’autres savent et pourraient relier",
    ),
    Text("Trust model", "Vertrauensmodell", "Modèle de confiance"),
    Text(
        "Region of the data, or whose law applies",
        "Region der Daten, oder wessen Recht gilt",
        "Région des données, ou droit applicable",
    ),
    Text("Sector", "Bereich", "Secteur"),
    Text("Date of publication", "Tag der Veröffentlichung", "Date de publication"),
    Text(
        "Authors of an entry in a registry of deployments",
        "Verfasser eines Eintrags im Register",
        "Auteurs d’une entrée au registre",
    ),
    Text(
        "Risks to the people concerned",
        "Risiken für die Betroffenen",
        "Risques pour les personnes concernées",
    ),
    Text("Measures taken", "Getroffene Maßnahmen", "Mesures prises"),
    Text(
        "Responsible for the processing",
        "Zuständig für die Verarbeitung",
        "Responsable de l’opération",
    ),
    Text("Open: ", "Offen: ", "Ouvert : "),
)

# Said where a language is not English, and in that language alone.
REMAINS_ENGLISH = Text(
    "What stands in English on these pages has no translation yet, such as the paragraphs of the "
    "numbered sections and the drawings. The data (report.json) are English in every report.",
    "Was auf diesen Seiten englisch ist, ist noch nicht übersetzt, so die Absätze der nummerierten "
    "Abschnitte und die Zeichnungen. Die Daten (report.json) sind in jedem Bericht englisch.",
    "Ce qui est en anglais dans ces pages n’est pas encore traduit, ainsi les paragraphes des "
    "sections numérotées et les dessins. Les données (report.json) sont en anglais dans tout "
    "rapport.",
)

TABLE: tuple[Text, ...] = (
    *VERDICTS,
    *LOOPS, *FRAME, *PROMISE, *MEANING, *READERS, *TRUST, *HAZARDS, *SUMMARY, *CHECKS,
    *HEADINGS, *GOVERNANCE,
)  # fmt: skip
